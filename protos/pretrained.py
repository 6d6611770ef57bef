"""The tokenizer files of a Hugging Face checkpoint: which there are, and what they say about special tokens.

tokenizer.json            the vocabulary and how texts are split; the one file that has to be there
tokenizer_config.json     named tokens (eos_token, ...), added tokens, the chat template of older checkpoints
special_tokens_map.json   named tokens of still older ones
chat_template.jinja       the chat template of newer ones
generation_config.json    further tokens that end a reply (eos_token_id may be a list)
stop_tokens.json          Tandem's own: the stop tokens, the one that ends a reply first
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from protos.errors import DataError

FILE, SETTINGS, TEMPLATE, STOPS = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "stop_tokens.json"
MAP, GENERATION = "special_tokens_map.json", "generation_config.json"
KEPT = (FILE, SETTINGS, MAP, TEMPLATE, "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model")
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OF_A_TOKEN = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")

Files = Mapping[str, bytes]


def read(folder: Path) -> Files:
    """The files that make up the tokenizer in `folder`. Raises DataError without a tokenizer.json."""
    if not (folder / FILE).is_file():
        raise DataError(f"no {FILE} in {folder}: not a checkpoint with a tokenizer that can be read")
    return {name: (folder / name).read_bytes() for name in KEPT if (folder / name).is_file()}


def tokenizer(folder: Path, files: Files) -> Tokenizer:
    """The tokenizer, with the added tokens that only the settings name; named tokens are special."""
    try:
        loaded = Tokenizer.from_buffer(files[FILE])
    except ValueError as error:
        raise DataError(f"{folder / FILE} cannot be read: {error}") from error
    told = settings(folder, files)
    for index, fields in sorted(told.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        if loaded.token_to_id(fields["content"]) is None:
            loaded.add_tokens([AddedToken(**{name: value for name, value in fields.items() if name in OF_A_TOKEN})])
        if loaded.token_to_id(fields["content"]) != int(index):
            raise DataError(f"{folder}: {SETTINGS} and {FILE} disagree about the id of {fields['content']!r}")
    known = [token for token in named_tokens(told, files).values() if loaded.token_to_id(token) is not None]
    loaded.add_special_tokens(known)
    return loaded


def settings(folder: Path, files: Files) -> dict[str, Any]:
    return _json(folder / SETTINGS, files[SETTINGS]) if SETTINGS in files else {}


def named_tokens(told: Mapping[str, Any], files: Files) -> dict[str, str]:
    """ "eos_token" -> "<|im_end|>" and so on, of those that are named."""
    older = _json(Path(MAP), files[MAP]) if MAP in files else {}
    texts = {name: told.get(name) or older.get(name) for name in NAMED}
    return {name: text["content"] if isinstance(text, dict) else text for name, text in texts.items() if text}


def stop_tokens(folder: Path, tokenizer: Tokenizer, named: Mapping[str, str]) -> tuple[str, ...]:
    """Tandem's own list where there is one; else the eos token and those of generation_config.json."""
    if (folder / STOPS).is_file():
        return tuple(_json(folder / STOPS, (folder / STOPS).read_bytes()))
    path = folder / GENERATION
    ids = _json(path, path.read_bytes()).get("eos_token_id") if path.is_file() else None
    listed = [ids] if isinstance(ids, int) else ids or []
    tokens = [named.get("eos_token"), *(tokenizer.id_to_token(i) for i in listed)]
    stops = tuple(dict.fromkeys(token for token in tokens if token))
    if not stops:
        raise DataError(f"{folder} names no token that ends a text: set eos_token in {SETTINGS}")
    return stops


def chat_template(told: Mapping[str, Any], files: Files) -> str | None:
    """The file's, else the one in the settings; of several named ones the `default`."""
    if TEMPLATE in files:
        return files[TEMPLATE].decode()
    template = told.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _json(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
