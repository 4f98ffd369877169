"""The vocabulary of a GGUF file: what it says of each token, and errors that name the key and both numbers."""

from typing import Any

import pytest

from chairlift.core.errors import ModelError
from chairlift.text.gguf_vocabulary import (
    TokenType,
    check_length,
    read_flag,
    read_id,
    read_list,
    read_text,
    read_vocabulary,
)
from support_gguf_tokenizer import CONTROL, KEY, NORMAL, UNUSED, bpe_metadata


def small(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"tokens": ["<unk>", "<s>", "<t>", "a"], "token_type": [2, 3, 4, 1], **changes}
    return {KEY + name: value for name, value in values.items() if value is not None}


def test_tokens_are_found_in_a_text_by_their_types() -> None:
    vocabulary = read_vocabulary(small())
    assert vocabulary.special_tokens == {0: True, 1: True, 2: False}
    assert vocabulary.ids == {"<unk>": 0, "<s>": 1, "<t>": 2, "a": 3}
    assert vocabulary.special_ids == {}
    assert vocabulary.special_token("bos") is None


@pytest.mark.parametrize("role", ["bos", "eos", "eot", "eom"])
def test_tokens_that_begin_or_end_a_text_are_special_whatever_their_types(role: str) -> None:
    vocabulary = read_vocabulary(small(**{f"{role}_token_id": 3}))
    assert vocabulary.special_tokens == {0: True, 1: True, 2: False, 3: True}
    assert vocabulary.special_token(role) == "a"
    assert read_vocabulary(small(**{f"{role}_token_id": 2})).special_tokens[2] is True


def test_other_roles_change_no_token() -> None:
    vocabulary = read_vocabulary(small(unknown_token_id=3, padding_token_id=3, mask_token_id=3, separator_token_id=3))
    assert vocabulary.special_ids == {"unk": 3, "pad": 3, "mask": 3, "sep": 3}
    assert 3 not in vocabulary.special_tokens


def test_the_separator_has_two_spellings_and_the_correct_one_counts() -> None:
    assert read_vocabulary(small(seperator_token_id=1)).special_ids == {"sep": 1}
    assert read_vocabulary(small(seperator_token_id=1, separator_token_id=2)).special_ids == {"sep": 2}


def test_types_of_unknown_numbers_mean_nothing() -> None:
    assert read_vocabulary(small(token_type=[0, 7, -1, 99])).special_tokens == {}


def test_only_unused_placeholders_of_their_own_id_are_no_tokens() -> None:
    tokens = ["[PAD0]", "[PAD7]", "[PAD2]", ""]
    vocabulary = read_vocabulary(small(tokens=tokens, token_type=[UNUSED, UNUSED, NORMAL, CONTROL]))
    assert vocabulary.ids == {"[PAD7]": 1, "[PAD2]": 2}
    assert vocabulary.special_tokens == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "the GGUF file has no tokenizer.ggml.tokens"),
        ({"tokens": "abcd"}, "the GGUF file's tokenizer.ggml.tokens must be a list of strings, got str"),
        (
            {"tokens": [1, "a"]},
            "the GGUF file's tokenizer.ggml.tokens must be a list of strings, one element is of type int",
        ),
        ({"token_type": None}, "the GGUF file has no tokenizer.ggml.token_type"),
        (
            {"token_type": [True] * 4},
            "the GGUF file's tokenizer.ggml.token_type must be a list of integers, one element is of type bool",
        ),
        (
            {"token_type": [1]},
            "the GGUF file's tokenizer.ggml.token_type has 1 elements, its vocabulary has 4 tokens",
        ),
        (
            {"tokens": ["a", "b", "c", "b"]},
            "the token 'b' is twice in the GGUF file's tokenizer.ggml.tokens, with the ids 1 and 3",
        ),
        (
            {"tokens": ["a", "b", "c", "\udc80"]},
            "a token in the GGUF file's tokenizer.ggml.tokens is not valid Unicode: surrogates not allowed",
        ),
        ({"bos_token_id": "1"}, "the GGUF file's tokenizer.ggml.bos_token_id must be a token id, got str"),
        ({"eot_token_id": 4}, "the GGUF file's tokenizer.ggml.eot_token_id is 4, its vocabulary has 4 tokens"),
        ({"eom_token_id": -1}, "the GGUF file's tokenizer.ggml.eom_token_id is -1, its vocabulary has 4 tokens"),
        (
            {"tokens": ["a", "b", "c", ""], "padding_token_id": 3},
            "the GGUF file's tokenizer.ggml.padding_token_id is 3, an id without a token",
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_vocabulary(small(**changes))
    assert caught.value.message == message


def test_single_values() -> None:
    metadata = {KEY + "flag": True, KEY + "id": 3, "general.name": "x", KEY + "list": (1.0, 2)}
    assert read_flag(metadata, "flag") is True
    assert read_flag(metadata, "absent") is None
    assert read_id(metadata, "id", 4) == 3
    assert read_id(metadata, "absent", 4) is None
    assert read_text(metadata, "general.name") == "x"
    assert read_text(metadata, "absent") is None
    assert read_list(metadata, "list", (float, int), "numbers") == [1.0, 2]
    check_length("list", 2, 2)
    for read in (
        lambda: read_flag(metadata, "id"),
        lambda: read_id(metadata, "flag", 4),
        lambda: read_id(metadata, "id", 3),
    ):
        with pytest.raises(ModelError, match="GGUF file"):
            read()


def test_a_trained_vocabulary_is_read_whole() -> None:
    metadata = bpe_metadata()
    vocabulary = read_vocabulary(metadata)
    assert vocabulary.tokens == metadata[KEY + "tokens"]
    assert vocabulary.types.count(TokenType.CONTROL) == 3
    assert len(vocabulary.ids) == len(vocabulary.tokens)
