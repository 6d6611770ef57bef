"""Tokenizers: special tokens, fingerprints, and a folder that both ends load."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

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


@given(st.text(max_size=30))
def test_byte_level_bpe_loses_nothing(text):
    tokenizer = TestBpe.tokenizer
    if any(token in text for token in SPECIAL):
        return
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
    with pytest.raises(DataError, match="lacks <pad>, <act>, <eoa>"):
        TextTokenizer(Tokenizer(models.WordLevel({UNK: 0}, unk_token=UNK)))
