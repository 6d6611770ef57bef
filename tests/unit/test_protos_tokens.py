"""Tokenizers: special tokens, fingerprints, and a folder that both ends load."""

import json

import chat_tokenizers
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from actors.pretrained import load_tokenizer
from protos.errors import DataError, TokenizerMismatch
from protos.tokens import ACT, EOA, FILE, PAD, SPECIAL, UNK, TextTokenizer, bpe_tokenizer, word_tokenizer

WORDS = ["go", "to", "cabinet", "cabinet 2", "mug", ":"]
PATTERN = r"[a-z]+ [2-9]\d*|[a-z]+|:"


def words() -> TextTokenizer:
    return word_tokenizer(WORDS, PATTERN, drop=[r" 1\b", r"\bthe\b"])


def test_one_token_an_entity_whatever_the_case():
    tokenizer = words()
    ids = tokenizer.encode("Go to the cabinet 1: cabinet 2: Mug 1")
    names = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    assert ids.tolist() == [names[word] for word in ("go", "to", "cabinet", ":", "cabinet 2", ":", "mug")]
    assert ids.dtype == np.int32
    assert tokenizer.size == len(SPECIAL) + len(WORDS)


def test_unknown_words_become_unk():
    tokenizer = words()
    assert tokenizer.encode("go sideways").tolist() == [4, tokenizer.unk_id]
    assert tokenizer.encode("").tolist() == []


def test_special_tokens_have_the_first_ids_and_are_left_out_of_texts():
    tokenizer = words()
    assert (tokenizer.pad_id, tokenizer.act_id, tokenizer.eoa_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.decode([tokenizer.act_id, 4, tokenizer.eoa_id]) == "go"


def test_the_encoding_of_a_text_is_shared_and_cannot_be_written_to():
    tokenizer = words()
    assert tokenizer.encode("go") is tokenizer.encode("go")
    with pytest.raises(ValueError, match="read-only"):
        tokenizer.encode("go")[0] = 5


CORPUS = ["You open the drawer 1. In it, you see a mug 1.", "You go to desk 2."] * 4


@given(st.lists(st.one_of(st.text(max_size=9), st.sampled_from(SPECIAL))).map("".join))
def test_byte_level_bpe_loses_nothing(text):
    """Names of special tokens included: in a plain text they are text."""
    tokenizer = TestBpe.tokenizer
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(text).tolist())
    assert tokenizer.decode(tokenizer.encode(text)) == text


class TestBpe:
    tokenizer = bpe_tokenizer(CORPUS, size=300)

    def test_it_is_as_large_as_asked_for_and_learns_merges(self):
        assert len(SPECIAL) + 256 < self.tokenizer.size <= 300
        assert len(self.tokenizer.encode("drawer")) < len("drawer")


def test_equal_vocabularies_have_equal_fingerprints_and_others_do_not():
    assert words().fingerprint == words().fingerprint
    assert words().fingerprint != word_tokenizer([*WORDS, "desk"], PATTERN).fingerprint
    words().check(words().fingerprint, "checkpoint x")
    with pytest.raises(TokenizerMismatch, match="checkpoint x was made with tokenizer 0123"):
        words().check("0123", "checkpoint x")


@pytest.mark.parametrize("make", [words, lambda: TestBpe.tokenizer])
def test_a_saved_tokenizer_is_the_same_one(tmp_path, make):
    tokenizer = make()
    tokenizer.save(tmp_path / "new" / "folder")
    loaded = TextTokenizer.load(tmp_path / "new" / "folder")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode("go to the cabinet 1").tolist() == tokenizer.encode("go to the cabinet 1").tolist()


def test_the_settings_beside_it_name_its_special_tokens(tmp_path):
    words().save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (settings["pad_token"], settings["eos_token"], settings["unk_token"]) == (PAD, EOA, UNK)
    assert settings["additional_special_tokens"] == [ACT]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=f"no {FILE}"):
        TextTokenizer.load(tmp_path)


def test_a_tokenizer_without_the_special_tokens_is_refused():
    with pytest.raises(DataError, match="lacks <pad>, <eoa>, <act>"):
        TextTokenizer(Tokenizer(models.WordLevel({UNK: 0}, unk_token=UNK)))


FAMILIES = list(chat_tokenizers.FAMILIES)
ENDS = {  # the token that ends a reply, all stops, the token that fills rows
    "qwen2": ("<|im_end|>", ["<|im_end|>", "<|endoftext|>"], "<|endoftext|>"),  # stops of generation_config.json
    "qwen3": ("<|im_end|>", ["<|im_end|>"], "<|endoftext|>"),
    "llama3": ("<|eot_id|>", ["<|eot_id|>"], "<|eot_id|>"),
    "smollm2": ("<|im_end|>", ["<|im_end|>"], "<|im_end|>"),
    "opened": ("<|im_end|>", ["<|im_end|>"], "<|im_end|>"),
    "base": ("<|endoftext|>", ["<|endoftext|>"], "<|endoftext|>"),
    "base_with_bos": ("<|endoftext|>", ["<|endoftext|>"], "<|endoftext|>"),
    "base_with_template": ("<|im_end|>", ["<|im_end|>", "<|endoftext|>"], "<|endoftext|>"),  # eos is not the turn's end
}


@pytest.fixture
def folder(tmp_path):
    return lambda family: chat_tokenizers.write(tmp_path / family, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_roles_of_a_pretrained_tokenizer(folder, family):
    tokenizer = load_tokenizer(folder(family))
    end, stops, pad = ENDS[family]
    assert [tokenizer.token(i) for i in tokenizer.stop_ids] == stops
    assert (tokenizer.token(tokenizer.eoa_id), tokenizer.token(tokenizer.pad_id)) == (end, pad)
    assert tokenizer.eoa_id == tokenizer.stop_ids[0]
    assert (tokenizer.act_id, tokenizer.unk_id) == (None, None)
    names = {tokenizer.token(i) for i in tokenizer.special_ids}
    assert names == set(chat_tokenizers.SPECIALS), "words such as <think> are no special tokens"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_tokenizer_encodes_as_its_own_library_does(folder, family):
    made = folder(family)
    tokenizer, reference = load_tokenizer(made), AutoTokenizer.from_pretrained(made)
    for text in ("You see a mug 12.", "naïve  <think>x</think>\n\n☃", ""):
        assert tokenizer.encode(text).tolist() == reference(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    scaffold = "<|im_start|>user\nlook<|im_end|>"
    assert tokenizer.scaffold(scaffold).tolist() == reference(scaffold, add_special_tokens=False)["input_ids"]
    assert not tokenizer.special_ids.isdisjoint(tokenizer.scaffold(scaffold).tolist())
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(scaffold).tolist())
    assert tokenizer.decode(tokenizer.encode(scaffold)) == scaffold


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_pretrained_tokenizer_is_the_same_one(folder, family, tmp_path):
    """Its own files as they were; the stops survive a generation_config.json that a model writes beside it."""
    made, saved = folder(family), tmp_path / "saved"
    tokenizer = load_tokenizer(made)
    tokenizer.save(saved)
    (saved / "generation_config.json").write_text('{"eos_token_id": 0}')
    for loaded in (load_tokenizer(saved), TextTokenizer.load(saved)):
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.stop_ids == tokenizer.stop_ids
        assert loaded.chat_template == tokenizer.chat_template
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (saved / name).read_bytes() == (made / name).read_bytes()
    chat = [{"role": "user", "content": "look"}]
    if tokenizer.chat_template:
        before, after = (AutoTokenizer.from_pretrained(place) for place in (made, saved))
        assert before.apply_chat_template(chat) == after.apply_chat_template(chat)


def test_the_fingerprint_covers_the_chat_template(folder):
    made = folder("qwen2")
    before = load_tokenizer(made).fingerprint
    template = made / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert load_tokenizer(made).fingerprint != before


def test_settings_of_whoever_saved_the_file_are_not_kept(folder):
    """Truncation and padding within tokenizer.json would cut and fill every text."""
    made = folder("qwen2")
    own = Tokenizer.from_file(str(made / FILE))
    own.enable_truncation(2)
    own.enable_padding(length=5)
    own.save(str(made / FILE))
    assert len(load_tokenizer(made).encode("You see a mug 12.")) > 5


def test_a_pad_token_that_is_not_in_the_vocabulary_is_not_used(folder):
    made = folder("base")
    settings = json.loads((made / "tokenizer_config.json").read_text())
    (made / "tokenizer_config.json").write_text(json.dumps(settings | {"pad_token": "<fill>"}))
    tokenizer = load_tokenizer(made)
    assert tokenizer.pad_id == tokenizer.eoa_id


def test_added_tokens_that_only_the_settings_name(folder):
    """Some checkpoints list added tokens in tokenizer_config.json alone."""
    made = folder("base")
    size = load_tokenizer(made).size
    settings = json.loads((made / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"][str(size)] = {"content": "<|act|>", "special": True, "__type": "AddedToken"}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(made)
    assert tokenizer.scaffold("<|act|>").tolist() == [size]
    assert size in tokenizer.special_ids
    assert tokenizer.size == size + 1
    settings["added_tokens_decoder"][str(size + 7)] = {"content": "<|far|>", "special": True}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match=r"disagree about the id of '<\|far\|>'"):
        load_tokenizer(made)


def test_files_that_cannot_be_used_are_named(folder):
    made = folder("base")
    (made / "tokenizer_config.json").write_text("{}")
    with pytest.raises(DataError, match="names no token that ends a text"):
        load_tokenizer(made)
    (made / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(made)
    for broken in ('{"model": 1}', "{", ""):
        (made / FILE).write_text(broken)
        with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
            load_tokenizer(made)


def test_older_vocabulary_files_are_converted(folder, tmp_path):
    """vocab.json and merges.txt alone: transformers builds the tokenizer, and its ids are those."""
    made = folder("base")
    model = json.loads((made / FILE).read_text())["model"]
    old = tmp_path / "old"
    old.mkdir()
    (old / "vocab.json").write_text(json.dumps(model["vocab"] | {"<|endoftext|>": len(model["vocab"])}))
    (old / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    (old / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}')
    (old / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = load_tokenizer(old)
    text = "You see a mug."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) < len(text), "merges are used"
    assert tokenizer.token(tokenizer.eoa_id) == "<|endoftext|>"


def test_a_folder_that_cannot_be_converted_says_so(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(DataError, match=r"could not be converted .*: install what transformers needs"):
        load_tokenizer(tmp_path)
