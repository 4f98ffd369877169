"""SamplingParams: every bound from both sides, unusual types, stored values, and defaults for None."""

import copy
import math
from dataclasses import FrozenInstanceError, asdict, replace
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import (
    ALL_FIELDS,
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGITS_PROCESSORS,
    MAX_PROCESSOR_ARGUMENTS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKENS,
    PYTHON_FIELDS,
    SAMPLING_FIELDS,
    LogitBias,
    SamplingParams,
)
from chairlift.core.structured_output import StructuredOutput
from support_shares import for_each

SMALLEST = 5e-324
NUMBERS = {  # field: (accepted values, rejected values)
    "temperature": ([0, -0.0, SMALLEST, 1, 2, 2.0], [-SMALLEST, 2.0000001]),
    "top_p": ([0, SMALLEST, 0.5, 1], [-0.1, 1.0000001]),
    "min_p": ([0, 0.5, 1], [-SMALLEST, 1.0000001]),
    "typical_p": ([SMALLEST, 0.5, 1], [0, -0.0, -0.1, 1.0000001]),
    "epsilon_cutoff": ([0, 0.5, 1], [-SMALLEST, 1.0000001]),
    "eta_cutoff": ([0, 0.5, 1], [-SMALLEST, 1.0000001]),
    "repetition_penalty": ([SMALLEST, 1, 10], [0, -1, 10.0001]),
    "presence_penalty": ([-2, 0, 2], [-2.0001, 2.0001]),
    "frequency_penalty": ([-2, 0, 2], [-2.0001, 2.0001]),
}
INTEGERS = {
    "top_k": ([-1, 0, 1, MAX_TOKENS], [-2, MAX_TOKENS + 1]),
    "max_tokens": ([1, MAX_TOKENS], [0, -1, MAX_TOKENS + 1]),
    "min_tokens": ([0, 5, MAX_TOKENS], [-1, MAX_TOKENS + 1]),
    "seed": ([-(2**63), 0, 2**63 - 1], [-(2**63) - 1, 2**63]),
    "logprobs": ([0, 1, 20], [-1, 21]),
    "prompt_logprobs": ([0, 1, 20], [-1, 21]),
    "no_repeat_ngram_size": ([0, 1, MAX_TOKENS], [-1, MAX_TOKENS + 1]),
    "n": ([1, 2, MAX_CHOICES], [0, -1, MAX_CHOICES + 1]),
    "best_of": ([1, 2, MAX_CHOICES], [0, -1, MAX_CHOICES + 1]),
}
FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "echo", "detokenize")
LISTS = (
    "stop", "stop_token_ids", "logit_bias", "bad_words", "bad_words_ids", "allowed_token_ids", "logits_processors",
)  # fmt: skip

NOT_NUMBERS: list[Any] = [
    "1",
    b"1",
    True,
    False,
    [1],
    (1,),
    {},
    1j,
    object(),
    Decimal(1),
    np.bool_(True),
    np.array([1]),
]
NOT_FINITE: list[Any] = [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400, -(10**400), 10**5000]


def pairs(table: dict[str, tuple[list[Any], list[Any]]], column: int) -> list[tuple[str, Any]]:
    return [(name, value) for name, columns in table.items() for value in columns[column]]


def check_rejected(name: str, value: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.details == {"param": name}
    assert str(caught.value).startswith(name)
    assert len(str(caught.value)) < 200
    return caught.value


def test_the_tables_of_this_file_name_every_field() -> None:
    assert {*NUMBERS, *INTEGERS, *FLAGS, *LISTS, "structured", "structured_outputs", "output_kind"} == set(ALL_FIELDS)
    assert set(ALL_FIELDS) - set(SAMPLING_FIELDS) == set(PYTHON_FIELDS)


@for_each(("name", "value"), [*pairs(NUMBERS, 0), *pairs(INTEGERS, 0)])
def test_a_value_on_its_bound_is_taken(name: str, value: Any) -> None:
    kept = getattr(SamplingParams(**{"max_tokens": None, name: value}), name)
    assert kept == (0 if (name, value) == ("top_k", -1) else value)
    assert type(kept) is (float if name in NUMBERS else int)


@for_each(("name", "value"), [*pairs(NUMBERS, 1), *pairs(INTEGERS, 1)])
def test_a_value_past_its_bound_is_refused(name: str, value: Any) -> None:
    message = str(check_rejected(name, value))
    assert str(value) in message


@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
@pytest.mark.parametrize("value", NOT_FINITE, ids=lambda value: str(value)[:9] if isinstance(value, float) else "huge")
def test_what_is_not_finite_or_huge_is_refused(name: str, value: Any) -> None:
    check_rejected(name, value)


@pytest.mark.share(60)
@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    assert type(value).__name__ in str(check_rejected(name, value))


@for_each("name", INTEGERS)
@for_each("value", [1.0, 0.5, np.float64(1), Fraction(1)])
def test_a_whole_number_must_be_an_integer(name: str, value: Any) -> None:
    assert "must be an integer" in str(check_rejected(name, value))


@for_each("name", ["presence_penalty", "frequency_penalty", "min_tokens", "n", *FLAGS])
def test_a_field_without_a_default_of_the_model_cannot_be_none(name: str) -> None:
    check_rejected(name, None)


@for_each("name", FLAGS)
@for_each("value", [0, 1, "yes", np.bool_(True), []])
def test_a_flag_is_true_or_false_and_nothing_like_it(name: str, value: Any) -> None:
    check_rejected(name, value)


class Level(IntEnum):
    ONE = 1


class Word(StrEnum):
    END = "END"


def test_numbers_of_numpy_and_enums_are_kept_as_plain_ones() -> None:
    """msgspec encodes plain types only; numpy.float64 passes isinstance(value, float), but msgspec rejects it."""
    params = SamplingParams(
        temperature=np.float64(0.5), top_p=np.float32(0.5), min_p=Fraction(1, 4), top_k=np.int64(3), seed=np.uint8(7),
        max_tokens=Level.ONE, stop=Word.END, stop_token_ids=[np.int32(2)], logit_bias={np.int16(5): np.float16(1.5)},
    )  # fmt: skip
    plain = SamplingParams(
        temperature=0.5, top_p=0.5, min_p=0.25, top_k=3, seed=7, max_tokens=1, stop="END", stop_token_ids=2,
        logit_bias={5: 1.5},
    )  # fmt: skip
    assert params == plain and hash(params) == hash(plain)
    assert msgspec.msgpack.encode(params) == msgspec.msgpack.encode(plain)
    assert type(params.max_tokens) is int and type(params.stop[0]) is str


@pytest.mark.parametrize("value", ["END", ["END"], ("END",)])
def test_one_stop_string_may_stand_alone(value: Any) -> None:
    assert SamplingParams(stop=value).stop == ("END",)


@pytest.mark.parametrize("value", [7, [7], (7,), [np.int64(7)]])
def test_one_stop_token_may_stand_alone(value: Any) -> None:
    assert SamplingParams(stop_token_ids=value).stop_token_ids == (7,)


@for_each("name", LISTS)
def test_none_is_an_empty_list(name: str) -> None:
    assert len(getattr(SamplingParams(**{name: None}), name)) == 0


def endless_iterator() -> Any:
    while True:
        yield 1


@for_each("name", ["stop", "stop_token_ids", "bad_words", "bad_words_ids", "allowed_token_ids"])
@for_each("value", [{}, {"a": 1}, {1, 2}, range(10**30), endless_iterator(), 1.5, False, object(), b"END"])
def test_what_is_no_list_is_refused_without_being_read(name: str, value: Any) -> None:
    """The order of a set is not stable, and an iterator may have no end."""
    check_rejected(name, value)


@for_each("value", [[1], [b"x"], [None], ["ok", True], [["a"]], 0, "", [""], ["ok", ""]])
def test_a_stop_string_is_a_string_that_is_not_empty(value: Any) -> None:
    check_rejected("stop", value)


@pytest.mark.parametrize("value", ["ok" + chr(half) for half in (0xD800, 0xDC80, 0xDFFF)])
def test_half_a_character_is_no_stop_string(value: str) -> None:
    """Half a surrogate pair cannot be encoded as UTF-8."""
    assert "surrogate" in str(check_rejected("stop", value))


@pytest.mark.parametrize("given", [{"top_p": 0}, {"top_p": 0.0, "top_k": 40}, {"top_p": None}])
def test_a_top_p_of_zero_keeps_the_likeliest_token_only(given: dict[str, Any]) -> None:
    resolved = SamplingParams(**given).with_defaults({"top_p": 0}, max_tokens=9, seed=4)
    assert (resolved.top_k, resolved.top_p) == (1, 1.0)


def test_stop_strings_are_bounded_in_number_and_length() -> None:
    assert len(SamplingParams(stop=[str(number) for number in range(64)]).stop) == MAX_STOP_STRINGS == 64
    longest = ["x" * MAX_STOP_STRING_CHARS] * 16
    assert SamplingParams(stop=longest).stop == tuple(longest)
    assert "has 16385 characters altogether, the limit is 16384" in str(check_rejected("stop", [*longest, "x"]))
    assert "has 65 entries, the limit is 64" in str(check_rejected("stop", ["x"] * (MAX_STOP_STRINGS + 1)))
    assert "1 to 1024 characters, got 1025" in str(check_rejected("stop", "x" * (MAX_STOP_STRING_CHARS + 1)))


@for_each("value", [["7"], "7", [7.0], [None], [True], -1, [-1], [MAX_TOKENS + 1], [10**400]])
def test_a_stop_token_is_a_possible_id(value: Any) -> None:
    check_rejected("stop_token_ids", value)


def test_stop_tokens_are_bounded_in_number() -> None:
    assert len(SamplingParams(stop_token_ids=list(range(MAX_STOP_TOKEN_IDS))).stop_token_ids) == MAX_STOP_TOKEN_IDS
    assert "has 257 entries, the limit is 256" in str(check_rejected("stop_token_ids", [1] * (MAX_STOP_TOKEN_IDS + 1)))


@for_each(
    "value",
    [
        {"5": 1.0}, {5.0: 1.0}, {True: 1.0}, {None: 1}, {-1: 1.0}, {MAX_TOKENS + 1: 1.0}, {10**400: 1.0},
        {5: "1"}, {5: None}, {5: True}, {5: math.nan}, {5: math.inf}, {5: 100.01}, {5: -100.01}, {5: 10**400},
        [(5, 1.0)], "5", 5,
    ],
)  # fmt: skip
def test_a_bias_maps_possible_ids_to_possible_numbers(value: Any) -> None:
    check_rejected("logit_bias", value)


def test_biases_are_bounded_in_number() -> None:
    assert len(SamplingParams(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS), -100)).logit_bias) == MAX_LOGIT_BIAS
    many = dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1)
    assert "has 1025 entries, the limit is 1024" in str(check_rejected("logit_bias", many))


def test_the_callers_lists_and_mappings_are_not_kept() -> None:
    bias, stop = {5: 1.0}, ["END"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[5] = 9.0
    stop.append("MORE")
    assert params.logit_bias == {5: 1.0} and params.stop == ("END",)


@for_each(
    "change",
    [
        lambda bias: bias.__setitem__(5, 2.0), lambda bias: bias.__delitem__(5), lambda bias: bias.clear(),
        lambda bias: bias.pop(5), lambda bias: bias.popitem(), lambda bias: bias.setdefault(6, 1.0),
        lambda bias: bias.update({6: 1.0}), lambda bias: bias.__ior__({6: 1.0}),
    ],
)  # fmt: skip
def test_the_bias_of_made_parameters_cannot_change(change: Any) -> None:
    params = SamplingParams(logit_bias={5: 1.0})
    with pytest.raises(TypeError, match="cannot change"):
        change(params.logit_bias)
    assert params.logit_bias == {5: 1.0}


def test_parameters_are_frozen_hash_and_copy() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={5: 1.0}, stop=["END"])
    with pytest.raises(FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]
    for twin in (copy.copy(params), copy.deepcopy(params), replace(params), SamplingParams(**asdict(params))):
        assert twin == params and hash(twin) == hash(params)
        assert type(twin.logit_bias) is LogitBias
    assert params != replace(params, logit_bias={5: 2.0})
    assert len({params, replace(params), replace(params, seed=1)}) == 2


def test_parameters_survive_the_wire() -> None:
    params = SamplingParams(temperature=0.5, top_k=-1, logit_bias={5: 1.0}, stop=["END"], seed=-(2**63), logprobs=0)
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert back == params and type(back.logit_bias) is LogitBias


def test_impossible_parameters_cannot_come_over_the_wire() -> None:
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(SamplingParams()), strict=False)
    with pytest.raises((InvalidRequest, msgspec.ValidationError), match="top_p"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({**raw, "top_p": 7.0}), type=SamplingParams)


def test_every_field_has_a_name_only() -> None:
    with pytest.raises(TypeError):
        SamplingParams(0.5)  # type: ignore[call-arg]


@pytest.mark.parametrize(("max_tokens", "fits"), [(4, False), (5, True), (None, True)])
def test_min_tokens_may_not_be_more_than_max_tokens(max_tokens: int | None, fits: bool) -> None:
    if fits:
        assert SamplingParams(min_tokens=5, max_tokens=max_tokens).min_tokens == 5
        return
    with pytest.raises(InvalidRequest, match="min_tokens is 5, more than max_tokens 4") as caught:
        SamplingParams(min_tokens=5, max_tokens=max_tokens)
    assert caught.value.details == {"param": "min_tokens"}


@pytest.mark.parametrize(("temperature", "greedy"), [(None, False), (0, True), (9e-6, True), (1e-5, False), (1, False)])
def test_a_temperature_of_nothing_is_greedy(temperature: float | None, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy


@pytest.mark.parametrize("more", [{"echo": True}, {"prompt_logprobs": 0}])
def test_max_tokens_may_be_zero_with_echo_or_prompt_logprobs(more: dict[str, Any]) -> None:
    assert SamplingParams(max_tokens=0, **more).is_prompt_logprobs_only
    assert not SamplingParams(max_tokens=1, **more).is_prompt_logprobs_only


def test_best_of_below_n_is_refused() -> None:
    assert SamplingParams(n=2, best_of=2).num_choices == 2 and SamplingParams(n=2, best_of=5).num_choices == 5
    with pytest.raises(InvalidRequest, match="best_of is 2, less than n 3"):
        SamplingParams(n=3, best_of=2)


@for_each("value", [[[]], [[1], []], [["a"]], [[True]], [[-1]], [[MAX_TOKENS + 1]], [{1: 2}], ["ab"]])
def test_a_bad_word_is_at_least_one_possible_id(value: Any) -> None:
    check_rejected("bad_words_ids", value)


def test_bad_words_may_be_lists_of_ids_or_single_ids() -> None:
    assert SamplingParams(bad_words_ids=[[1, 2], 3, np.int64(4)]).bad_words_ids == ((1, 2), (3,), (4,))


def test_words_and_ids_are_bounded_in_number() -> None:
    check_rejected("bad_words", ["x"] * (MAX_BAD_WORDS + 1))
    check_rejected("bad_words_ids", [[1]] * (2 * MAX_BAD_WORDS + 1))
    check_rejected("bad_words_ids", [[1] * (MAX_BAD_WORD_TOKENS + 1)])
    check_rejected("allowed_token_ids", range(0))
    check_rejected("allowed_token_ids", [1] * (MAX_ALLOWED_TOKEN_IDS + 1))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a", (("a", "{}"),)), (["a", "b"], (("a", "{}"), ("b", "{}"))), ({"a": {"k": 1}}, (("a", '{"k": 1}'),)),
        ({"a": None}, (("a", "{}"),)), ([("a", {"k": [1, "x"]})], (("a", '{"k": [1, "x"]}'),)),
    ],
)  # fmt: skip
def test_logits_processors_are_names_with_arguments(given: Any, kept: Any) -> None:
    params = SamplingParams(logits_processors=given)
    assert params.logits_processors == kept
    assert replace(params, seed=1).logits_processors == kept and hash(params)


@for_each(
    "value",
    [
        5, [5], [None], [""], {"a": object()}, {"a": math.nan}, {"a": [1]}, {"a": 5}, {5: {}}, {"a": {"k": {1, 2}}},
        ["a"] * (MAX_LOGITS_PROCESSORS + 1), {"a": {"k": "x" * MAX_PROCESSOR_ARGUMENTS}}, {"a" * 2000: {}},
        {str(number): {} for number in range(MAX_LOGITS_PROCESSORS + 1)},
    ],
)  # fmt: skip
def test_impossible_logits_processors_are_refused(value: Any) -> None:
    check_rejected("logits_processors", value)


@pytest.mark.parametrize("value", ["[0-9]+", {"regex": "a"}, 5, True, ["a"]])
def test_a_structure_is_a_structured_output(value: Any) -> None:
    check_rejected("structured", value)


def test_everything_together_survives_the_wire() -> None:
    params = SamplingParams(
        n=2, best_of=3, typical_p=0.5, epsilon_cutoff=0.1, eta_cutoff=0.2, no_repeat_ngram_size=3, bad_words=["x"],
        bad_words_ids=[[1, 2]], allowed_token_ids=[1, 2], prompt_logprobs=2, echo=True, logits_processors={"a": {}},
        structured=StructuredOutput(json_schema={"type": "object"}),
    )  # fmt: skip
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
