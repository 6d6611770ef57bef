"""The tokenizer of any checkpoint, made ready for acting."""

from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

from actors.prompts.chat import reply_end
from protos.errors import ConfigError, DataError
from protos.pretrained import FILE, GENERATION
from protos.tokens import TextTokenizer


def load_tokenizer(folder: Path) -> TextTokenizer:
    """The tokenizer of the checkpoint in `folder`, whose replies end where its chat template ends an assistant's words.

    A folder with an older form of vocabulary only (SentencePiece, vocab.json and merges.txt) is converted by
    transformers' AutoTokenizer. Raises DataError where there is no tokenizer, or it cannot be converted.
    """
    tokenizer = TextTokenizer.load(folder) if (folder / FILE).is_file() else _converted(folder)
    if tokenizer.chat_template is None:
        return tokenizer
    try:
        end = reply_end(tokenizer)
    except ConfigError:  # a template that no prompt can use: the prompt's `build` says why
        return tokenizer
    return tokenizer.ending_replies_with(end) if end not in (None, tokenizer.token(tokenizer.eoa_id)) else tokenizer


def _converted(folder: Path) -> TextTokenizer:
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        with TemporaryDirectory() as made:
            slow.save_pretrained(made)
            if (folder / GENERATION).is_file():
                copy(folder / GENERATION, made)
            return TextTokenizer.load(Path(made))
    except (ValueError, OSError, ImportError, KeyError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{folder} has no {FILE}, and its older files could not be converted ({reason}): install what transformers "
            "needs for them (sentencepiece, tiktoken), or save the tokenizer once with AutoTokenizer there"
        ) from error
