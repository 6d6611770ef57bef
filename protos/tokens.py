"""The tokenizer: one `tokenizers` file that both ends hold, checked by fingerprint when they meet.

Text is encoded once, where it is born, and only ids travel: nothing is ever re-tokenised. Two sorts are served alike:

    compact      Tandem's own, for new models: `<act>` asks for an action, `<eoa>` ends it
    pretrained   a Hugging Face checkpoint's own files, with its chat template

**Plain text is plain.** `encode` never reads a special token out of a text: a game that says "<|im_end|>" cannot end a
turn. `scaffold` is for the few texts of the trainer's own, where special tokens are meant.

**Padding is never found by value.** Many checkpoints pad with the very token that ends a reply; lengths travel with ids.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from protos import pretrained
from protos.errors import DataError, TokenizerMismatch
from protos.pretrained import FILE, STOPS
from protos.records import TokenIds

PAD, ACT, EOA, UNK = "<pad>", "<act>", "<eoa>", "<unk>"
SPECIAL = (PAD, ACT, EOA, UNK)
SHORT = 1024  # characters of a text whose encoding is kept: longer ones are mostly prompts, and seldom come again


@dataclass(frozen=True, slots=True)
class Roles:
    """Which tokens do what, by their texts, and the template that frames a chat."""

    stops: tuple[str, ...]  # the first ends a reply; the others end one too
    pad: str
    act: str | None = None
    unk: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>": what chat templates may print
    chat_template: str | None = None


COMPACT = Roles(stops=(EOA,), pad=PAD, act=ACT, unk=UNK, names={"eos_token": EOA, "pad_token": PAD, "unk_token": UNK})


class TextTokenizer:
    """A `tokenizers` tokenizer, the roles of its tokens, a fingerprint, and a folder form that AutoTokenizer loads.

    stop_ids      tuple: ids that end a reply; the first is eoa_id
    eoa_id        the id that ends a reply: what the chat template puts after an assistant's words, else the eos token
    pad_id        fills rows; may equal eoa_id
    act_id        asks for a reply; None where a chat template does
    unk_id        None where every text can be written
    special_ids   frozenset: ids that never stand within an executed reply
    special_tokens, chat_template   what a chat template is rendered with, and the template (None: there is none)
    size          1 + the largest id
    """

    def __init__(self, tokenizer: Tokenizer, roles: Roles = COMPACT, files: Mapping[str, bytes] | None = None) -> None:
        wanted = [roles.pad, *roles.stops, *(token for token in (roles.act, roles.unk) if token is not None)]
        missing = [token for token in dict.fromkeys(wanted) if tokenizer.token_to_id(token) is None]
        if missing:
            raise DataError(f"the tokenizer lacks {', '.join(missing)}")
        self._tokenizer, self._roles, self._files = tokenizer, roles, files
        tokenizer.no_truncation()  # settings of whoever saved the file, not of the text
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self.stop_ids = tuple(dict.fromkeys(self._id(token) for token in roles.stops))
        self.eoa_id = self.stop_ids[0]
        self.pad_id = self._id(roles.pad)
        self.act_id = self._id(roles.act) if roles.act is not None else None
        self.unk_id = self._id(roles.unk) if roles.unk is not None else None
        added = tokenizer.get_added_tokens_decoder()
        named = [i for i in (self.pad_id, self.act_id, self.unk_id) if i is not None]
        self.special_ids = frozenset([*self.stop_ids, *named, *(i for i, token in added.items() if token.special)])
        self.special_tokens = dict(roles.names)
        self.chat_template = roles.chat_template
        self.size = 1 + max(tokenizer.get_vocab().values())
        self.fingerprint = _fingerprint(tokenizer, roles)
        self._short = lru_cache(maxsize=200_000)(self._encode)

    def encode(self, text: str) -> TokenIds:
        """Ids of a plain text; special tokens in it are written out as text. Read-only; short texts share their array."""
        return self._short(text) if len(text) <= SHORT else self._encode(text)

    def scaffold(self, text: str) -> TokenIds:
        """Ids of a text of the trainer's own (a chat template's), in which special tokens stand for themselves."""
        return _ids(self._parsing.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, special tokens left out. Not an inverse of `encode` for every tokenizer: never re-encode it."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    @cached_property
    def begin(self) -> str:
        """What this tokenizer itself puts before a text ("<s>" or nothing): for models without a chat template."""
        encoding = self._parsing.encode("a", add_special_tokens=True)
        first = encoding.special_tokens_mask.index(0)
        return "".join(encoding.tokens[:first])

    def ending_replies_with(self, token: str) -> "TextTokenizer":
        """The same tokenizer, replies ended by the special token `token`; the other stops still end one."""
        stops = tuple(dict.fromkeys([token, *self._roles.stops]))
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        return TextTokenizer(tokenizer, replace(self._roles, stops=stops), self._files)

    def token(self, index: int) -> str:
        """The text of one token as the vocabulary has it."""
        return self._tokenizer.id_to_token(index) or ""

    def save(self, folder: Path) -> None:
        """Write the files from which `load` and transformers' AutoTokenizer read the same tokenizer.

        A pretrained tokenizer's own files are written as they were read.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (self._files or _compact_files(self._tokenizer)).items():
            (folder / name).write_bytes(content)
        if self._roles.act is None:  # a model saved beside it has a generation_config.json of its own
            (folder / STOPS).write_text(json.dumps(self._roles.stops) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer":
        """The tokenizer of a checkpoint's folder, Tandem's or any other.

        Replies end with the eos token (a checkpoint that Tandem saved names its stops itself): `actors.pretrained` also
        looks what the chat template ends them with. Raises DataError where a file is missing or does not fit the others.
        """
        files = pretrained.read(folder)
        tokenizer = pretrained.tokenizer(folder, files)
        if all(tokenizer.token_to_id(token) is not None for token in SPECIAL):
            return cls(tokenizer)
        settings = pretrained.settings(folder, files)
        named = pretrained.named_tokens(settings, files)
        stops = pretrained.stop_tokens(folder, tokenizer, named)
        unk = named.get("unk_token")
        roles = Roles(
            stops=stops,
            pad=_present(tokenizer, named.get("pad_token")) or stops[0],
            unk=unk if unk not in stops else None,  # byte-level vocabularies name one that they never need
            names=named,
            chat_template=pretrained.chat_template(settings, files),
        )
        return cls(tokenizer, roles, files)

    def check(self, fingerprint: str, where: str) -> None:
        """Refuse to go on with the other end's records or weights where its tokenizer is another one."""
        if fingerprint != self.fingerprint:
            raise TokenizerMismatch(
                f"{where} was made with tokenizer {fingerprint}, this run has {self.fingerprint}: "
                "use the tokenizer saved beside it"
            )

    def _id(self, token: str) -> int:
        index = self._tokenizer.token_to_id(token)
        assert index is not None, token
        return index

    def _encode(self, text: str) -> TokenIds:
        return _ids(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _parsing(self) -> Tokenizer:
        """A second instance, for texts in which special tokens are meant."""
        return Tokenizer.from_str(self._tokenizer.to_str())


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


def _ids(ids: Sequence[int]) -> TokenIds:
    array = np.asarray(ids, dtype=np.int32)
    array.flags.writeable = False
    return array


def _present(tokenizer: Tokenizer, token: str | None) -> str | None:
    return token if token is not None and tokenizer.token_to_id(token) is not None else None


def _fingerprint(tokenizer: Tokenizer, roles: Roles) -> str:
    """Of the vocabulary, and for a pretrained one of its chat template and stop tokens as well."""
    content = _canonical(tokenizer)
    if roles.act is None:
        content += json.dumps([roles.chat_template, roles.stops]).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _canonical(tokenizer: Tokenizer) -> bytes:
    """The file's bytes, the same for equal tokenizers whatever library version wrote them."""
    return (json.dumps(json.loads(tokenizer.to_str()), sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()


def _compact_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "unk_token": UNK,
        "eos_token": EOA,
        "additional_special_tokens": [ACT],
        "clean_up_tokenization_spaces": False,
    }
    return {FILE: _canonical(tokenizer), pretrained.SETTINGS: (json.dumps(settings, indent=2) + "\n").encode()}
