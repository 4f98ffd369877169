"""StructuredOutput: five kinds, one at a time, bounded in length, depth and number before any parser runs."""

import time
from dataclasses import FrozenInstanceError, replace
from typing import Any

import msgspec
import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.core.structured_output import MAX_CHOICE_STRINGS, MAX_DEPTH, MAX_STRUCTURED_CHARS, StructuredOutput
from chairlift.core.vllm_structured_outputs_params import StructuredOutputsParams
from support_shares import for_each

KINDS: dict[str, Any] = {
    "json_schema": {"type": "object"}, "json_object": True, "regex": "[0-9]+", "grammar": 'start: "a"',
    "choice": ("yes", "no"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_knows_itself_and_crosses_a_border(kind: str) -> None:
    made = StructuredOutput(**{kind: KINDS[kind]})
    assert made.kind == kind and hash(made)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=StructuredOutput) == made
    with pytest.raises(FrozenInstanceError):
        made.regex = "x"  # type: ignore[misc]


@pytest.mark.parametrize("given", [{}, {"json_object": False}, {"regex": "a", "json_object": True}, KINDS])
def test_it_is_exactly_one_of_them(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="needs exactly one of"):
        StructuredOutput(**given)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, '{"type":"integer"}'), ('{"type" : "integer"}', '{"type":"integer"}'), (True, "true"),
        ({}, "{}"), ({"enum": ["ä", 1.5, None]}, '{"enum":["ä",1.5,null]}'),
    ],
)  # fmt: skip
def test_a_schema_is_kept_as_compact_text_so_that_equal_ones_are_equal(schema: Any, text: str) -> None:
    assert StructuredOutput(json_schema=schema).json_schema == text
    assert StructuredOutput(json_schema=text) == StructuredOutput(json_schema=schema)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"items": value}
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["a"] = value["b"] = value
    return value


@for_each(
    ("given", "message"),
    [
        ({"json_schema": "{"}, "must be JSON"), ({"json_schema": '{"a": NaN}'}, "NaN is not JSON"),
        ({"json_schema": '{"a": 1e999}'}, "JSON"), ({"json_schema": {"a": float("nan")}}, "JSON"),
        ({"json_schema": [1]}, "must be an object, true or false, got list"), ({"json_schema": 5}, "got int"),
        ({"json_schema": {"x-guidance": {"item_separator": ";"}}}, "must not have x-guidance"),
        ({"json_schema": '{"x-guidance": {"lenient": true}}'}, "must not have x-guidance"),
        ({"json_schema": "5"}, "got int"), ({"json_schema": {"a": {1, 2}}}, "a value that JSON can represent"),
        ({"json_schema": {"a": "\ud800"}}, "JSON"), ({"json_schema": nested(MAX_DEPTH + 1)}, "nested deeper than"),
        ({"json_schema": cyclic()}, "nested deeper|more than"), ({"json_schema": "[" * 200_000}, "must be JSON"),
        ({"json_schema": {"a": "x" * MAX_STRUCTURED_CHARS}}, "characters as JSON"),
        ({"json_schema": " " * (MAX_STRUCTURED_CHARS + 1)}, "the limit is"),
        ({"json_object": 1}, "must be true or false"), ({"regex": ""}, "1 to"), ({"regex": 5}, "must be a string"),
        ({"regex": "x" * (MAX_STRUCTURED_CHARS + 1)}, "characters"), ({"regex": "(" * 30_000}, "nest brackets deeper"),
        ({"grammar": "start: " + "(" * 100 + ")" * 100}, "nest brackets deeper"), ({"grammar": "\udc00"}, "surrogate"),
        ({"choice": [""]}, "1 to"), ({"choice": [5]}, "strings"), ({"choice": {"a"}}, "list"),
        ({"choice": ["a"] * (MAX_CHOICE_STRINGS + 1)}, "entries"),
        ({"choice": ["x" * 1000] * 300}, "has 300000 characters, the limit is"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_once_with_its_field(given: dict[str, Any], message: str) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match=message) as caught:
        StructuredOutput(**given)
    assert str(caught.value).startswith("structured") and len(str(caught.value)) < 400
    assert time.monotonic() - began < 30


def test_brackets_side_by_side_are_not_deep() -> None:
    assert StructuredOutput(regex="(a)" * 10_000).size == 30_000
    assert StructuredOutput(json_schema={"items": nested(MAX_DEPTH - 2)})


def test_its_size_is_all_of_its_text() -> None:
    assert StructuredOutput(choice=("yes", "no")).size == 5
    assert StructuredOutput(json_object=True).size == 0


# -- vLLM's form ---------------------------------------------------------------------------------------------------


@for_each(
    ("options", "structure"),
    [
        ({"json": {"type": "object"}}, {"json_schema": {"type": "object"}}), ({"json": "{}"}, {"json_schema": {}}),
        ({"regex": "a"}, {"regex": "a"}), ({"choice": ["a", "b"]}, {"choice": ("a", "b")}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}), ({"json_object": True}, {"json_object": True}),
    ],
)  # fmt: skip
def test_sampling_params_take_the_form_of_vllm(options: dict[str, Any], structure: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**options), n=2)
    assert params == SamplingParams(structured=StructuredOutput(**structure), n=2)
    assert params.structured_outputs is None and replace(params, n=3).structured == params.structured


def test_there_is_one_form_at_most() -> None:
    vllm = StructuredOutputsParams(regex="a")
    with pytest.raises(InvalidRequest, match="cannot be combined with structured"):
        SamplingParams(structured=StructuredOutput(regex="a"), structured_outputs=vllm)
    with pytest.raises(InvalidRequest, match="must be a StructuredOutputsParams, got dict"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
