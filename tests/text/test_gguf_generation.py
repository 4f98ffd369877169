"""generation_config.json of a GGUF file: every token that ends a turn, and defaults for sampling."""

import struct
from typing import Any

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config.generation_config import parse_generation_defaults
from chairlift.text.gguf_generation import END_SPELLINGS, generation_fields
from support_gguf_tokenizer import CONTROL, KEY, NORMAL, USER_DEFINED


def metadata(*tokens: str, kind: int = CONTROL, **ids: int) -> dict[str, Any]:
    return {KEY + "tokens": list(tokens), KEY + "token_type": [kind] * len(tokens)} | {
        f"{KEY}{role}_token_id": token_id for role, token_id in ids.items()
    }


def test_eos_eot_and_eom_end_a_sequence_each_once() -> None:
    fields = generation_fields(metadata("a", "b", "c", "d", bos=0, eos=2, eot=1, eom=3, padding=2))
    assert fields == {"bos_token_id": 0, "pad_token_id": 2, "eos_token_id": [2, 1, 3]}
    assert generation_fields(metadata("a", "b", eos=1, eot=1))["eos_token_id"] == [1]
    assert generation_fields(metadata("a", "b")) == {}


@pytest.mark.parametrize("spelled", END_SPELLINGS)
def test_a_token_ends_a_turn_by_its_spelling(spelled: str) -> None:
    assert generation_fields(metadata("a", "b", spelled, eos=1))["eos_token_id"] == [1, 2]
    assert generation_fields(metadata(spelled, kind=USER_DEFINED))["eos_token_id"] == [0]
    assert generation_fields(metadata("a", spelled, eos=1))["eos_token_id"] == [1]
    assert generation_fields(metadata(spelled, kind=NORMAL)) == {}


def test_the_end_of_a_message_ends_no_turn_where_turns_have_several_messages() -> None:
    fields = generation_fields(metadata("<|end|>", "<|return|>", "<|call|>", "<|endoftext|>", eos=1, eot=0))
    assert fields["eos_token_id"] == [1, 3, 2]
    assert generation_fields(metadata("<|end|>", "<|return|>", eos=1))["eos_token_id"] == [1, 0]


def test_sampling_defaults_have_the_values_that_their_author_wrote() -> None:
    as_stored = struct.unpack("f", struct.pack("f", 0.6))[0]
    assert as_stored != 0.6
    values = {
        "temp": as_stored, "top_k": 20, "top_p": struct.unpack("f", struct.pack("f", 0.95))[0], "min_p": 0.0,
        "penalty_repeat": 1.0499999523162842, "mirostat": 2, "sequence": "kpt", "typical_p": float("nan"),
    }  # fmt: skip
    fields = generation_fields(metadata("a") | {f"general.sampling.{key}": value for key, value in values.items()})
    assert fields == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05}
    defaults, problems = parse_generation_defaults(fields, (7,))
    assert problems == []
    assert defaults.sampling == fields
    assert defaults.eos_token_ids == (7,)


@pytest.mark.parametrize("value", ["0.5", True, [0.5], None, float("inf"), {}])
def test_a_sampling_default_that_is_no_number_is_left_out(value: Any) -> None:
    assert generation_fields(metadata("a") | {"general.sampling.temp": value}) == {}


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ModelError, match="eot_token_id is 9, its vocabulary has 2 tokens"):
        generation_fields(metadata("a", "b", eot=9))
