"""The tokenizer: one `tokenizers` file that both ends hold, checked by fingerprint when they meet.

Text is encoded once, where it is born, and only ids travel: nothing is ever re-tokenised. Two special tokens frame an
action: `<act>` asks for one, `<eoa>` ends it.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from protos.errors import DataError, TokenizerMismatch
from protos.records import TokenIds

PAD, ACT, EOA, UNK = "<pad>", "<act>", "<eoa>", "<unk>"
SPECIAL = (PAD, ACT, EOA, UNK)
FILE = "tokenizer.json"


class TextTokenizer:
    """A `tokenizers` tokenizer with the four special tokens, a fingerprint, and a folder form that AutoTokenizer loads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
        if missing:
            raise DataError(f"the tokenizer lacks {', '.join(missing)}; Tandem frames actions with {ACT} and {EOA}")
        self._tokenizer = tokenizer
        ids = [i for token in SPECIAL if (i := tokenizer.token_to_id(token)) is not None]
        self.pad_id, self.act_id, self.eoa_id, self.unk_id = ids
        self.size = tokenizer.get_vocab_size()
        self.fingerprint = hashlib.sha256(_canonical(tokenizer)).hexdigest()[:16]
        self._encode = lru_cache(maxsize=200_000)(self._encode_uncached)

    def encode(self, text: str) -> TokenIds:
        """Ids of `text`, without special tokens; a read-only array shared by equal texts."""
        return self._encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, special tokens left out. Not an inverse of `encode` for every tokenizer: never re-encode it."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        """Write the files from which `load` and transformers' AutoTokenizer read the same tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_bytes(_canonical(self._tokenizer))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "unk_token": UNK,
            "eos_token": EOA,
            "additional_special_tokens": [ACT],
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer":
        path = folder / FILE
        if not path.is_file():
            raise DataError(f"no {FILE} in {folder}: not a Tandem checkpoint")
        return cls(Tokenizer.from_file(str(path)))

    def check(self, fingerprint: str, where: str) -> None:
        """Refuse to go on with the other end's records or weights where its tokenizer is another one."""
        if fingerprint != self.fingerprint:
            raise TokenizerMismatch(
                f"{where} was made with tokenizer {fingerprint}, this run has {self.fingerprint}: "
                "use the tokenizer saved beside it"
            )

    def _encode_uncached(self, text: str) -> TokenIds:
        ids = np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        ids.flags.writeable = False
        return ids


def word_tokenizer(words: Iterable[str], pattern: str, drop: Iterable[str] = ()) -> TextTokenizer:
    """One token a word, for small worlds with a closed vocabulary; lossy, and compact.

    The text is lower-cased, what the regexes `drop` match is deleted, and the matches of `pattern` in the rest are the
    words. Words outside the vocabulary become `<unk>`.
    """
    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    for word in words:
        vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    deletions = [normalizers.Replace(Regex(regex), "") for regex in drop]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *deletions])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    tokenizer.add_special_tokens(list(SPECIAL))
    return TextTokenizer(tokenizer)


def bpe_tokenizer(texts: Iterable[str], size: int = 1024) -> TextTokenizer:
    """A byte-level BPE trained on `texts`: lossless on any text, for worlds whose vocabulary is not known."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TextTokenizer(tokenizer)


def _canonical(tokenizer: Tokenizer) -> bytes:
    """The file's bytes, the same for equal tokenizers whatever library version wrote them."""
    return (json.dumps(json.loads(tokenizer.to_str()), sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()
