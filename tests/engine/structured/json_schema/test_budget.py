"""LoweringBudget: the schemas of one request share it, so that costly ones end soon, in any number."""

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.engine.structured.json_schema.budget import MAX_COMPARISONS, MAX_SCHEMAS, LoweringBudget
from chairlift.engine.structured.json_schema.document import TYPES
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.lowering import lower
from support_request_bodies import chat
from support_shares import FULL, for_each

MAX_CALLS = 8_000_000
"""Most calls of Python functions while one request is parsed, about twice those of the costliest schema here."""


def each(count: int, schema: Any, **more: Any) -> dict[str, Any]:
    """Return an object with many properties of the same schema."""
    return {"type": "object", "properties": {f"p{number}": schema for number in range(count)}, **more}


NAMES = {"enum": [f"name {number}" for number in range(9000)]}
PAIRS_OF_TYPES = [list(names) for names in itertools.combinations(TYPES, 2)]


def nested(leaf: Any) -> Any:
    for _ in range(5):
        leaf = {"type": "object", "properties": {"a": leaf, "b": leaf}, "additionalProperties": leaf}
    return leaf


COSTLY: dict[str, dict[str, Any]] = {
    "many schemas": {"type": "object", "allOf": [{}] * 80_000},
    "malformed definitions": each(
        3000, {"$ref": "#/$defs/d"},
        **{"$defs": {"d": {"type": "string"}, **{f"d{number}": {"type": "banana"} for number in range(3000)}}},
    ),
    "uniqueItems": each(1500, {"type": "array", "uniqueItems": True, "items": {"enum": [0, 1, 2, 3, 4]}}),
    "contains": each(2000, {"type": "array", "contains": {"type": "string"}, "maxContains": 3}),
    "oneOf": each(80, {"oneOf": [
        {"type": "object", "properties": {"a": {"const": number}, "b": {}}} for number in range(20)
    ]}),
    "oneOf of references": each(
        2000, {"oneOf": [{"$ref": "#/$defs/e"}] * 2}, **{"$defs": {"e": {"enum": list(range(1000))}}}
    ),
    "oneOf of equal objects": {"oneOf": [each(100, {"type": "string"}, title=str(number)) for number in range(100)]},
    "oneOf of nested objects": each(
        1500, {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]},
        **{"$defs": {"one": nested({"type": "integer"}), "other": nested({"type": "number"})}},
    ),
    "oneOf of alternatives": {"oneOf": [{"anyOf": [{"type": names} for names in PAIRS_OF_TYPES]}] * 100},
    "references from values of many types": each(
        1, {}, allOf=[{"properties": {f"q{number}": {"type": names, "$ref": "#/$defs/0"}}}
                      for number, names in enumerate(PAIRS_OF_TYPES * 40)],
        **{"$defs": {"2000": {}, "2001": {}} | {
            str(number): {"minimum": 0, "allOf": [{"$ref": f"#/$defs/{number + more}"} for more in (1, 2)]}
            for number in range(2000)
        }},
    ),
    "if": each(1000, {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"not": {"required": ["c"]}}}),
    "propertyNames": each(2000, {"propertyNames": {"$ref": "#/$defs/e"}}, **{"$defs": {"e": NAMES}}),
    "names by complement": each(
        2000, {"propertyNames": {"not": {"$ref": "#/$defs/e"}}}, **{"$defs": {"e": {"enum": NAMES["enum"][:300]}}}
    ),
    "names by pattern": each(
        2000, {"propertyNames": {"$ref": "#/$defs/e"}}, **{"$defs": {"e": {"pattern": "[a-z]x" * 20_000}}}
    ),
    "character classes": each(1, {"pattern": "".join(f"[^\\d{chr(0x4E00 + code)}]" for code in range(20_000))}),
    "unevaluatedProperties": each(
        2000, {"type": "string"}, unevaluatedProperties=False,
        anyOf=[{"required": [f"p{number}"]} for number in range(8)],
        allOf=[{"anyOf": [{"required": [f"p{number}"]} for number in range(8)]}],
    ),
}  # fmt: skip


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the calls of Python functions in the block: work that does not depend on the machine."""
    num_calls: Counter[str] = Counter()

    def count(frame: object, event: str, argument: object) -> None:
        if event == "call":
            num_calls["python"] += 1

    sys.setprofile(count)
    try:
        yield num_calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("name", COSTLY if FULL else ["contains"])
def test_a_costly_schema_ends_soon(name: str) -> None:
    message = "too large"
    with counted_calls() as num_calls:
        try:
            lower(COSTLY[name], strict=False)
        except ValueError as error:
            message = str(error)
    assert "too large" in message and len(message) < 200
    assert num_calls["python"] < MAX_CALLS


TEXT = {"type": "string"}


def parts_of(keyword: str, **definitions: Any) -> dict[str, Any]:
    """Return a oneOf of eight parts that refer to large definitions, each with a value of its own for a keyword."""
    names = list(definitions)
    return {"$defs": definitions, "oneOf": [
        {"$ref": f"#/$defs/{names[number % len(names)]}", keyword: [f"p{number}"] if keyword == "required" else number}
        for number in range(8)
    ]}  # fmt: skip


@for_each(
    ("schema", "most"),
    [
        (parts_of("required", a=each(60, True)), 25_000),
        (parts_of("required", a=each(60, True, additionalProperties=TEXT)), 25_000),
        (parts_of("required", a={"type": "object", "patternProperties": {f"^p{at}$": True for at in range(60)}}),
         25_000),
        (parts_of("maxLength", a={**TEXT, "oneOf": [{"minLength": at} for at in range(130)]}), 40_000),
        (parts_of("maxLength", a={**TEXT, "allOf": [{"pattern": f"a{at}"} for at in range(40)]}), 30_000),
        (parts_of("maxLength", a={**TEXT, "enum": [str(at) for at in range(500)]}), 25_000),
        (parts_of("minItems", a={"const": [1.0] * 2000}), 25_000),
        # Two ways to each of thirty levels.
        ({"oneOf": [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/1"}], "$defs": {"30": TEXT} | {
            str(at): each(2, {"$ref": f"#/$defs/{at + 1}"}, required=["p0", "p1"]) for at in range(30)
        }}, 40_000),
    ],
)  # fmt: skip
def test_parts_of_a_one_of_are_compared_in_few_calls(schema: Any, most: int) -> None:
    with counted_calls() as num_calls:
        lower(schema, strict=False)
    assert num_calls["python"] < most, num_calls["python"]


def test_what_exceeds_the_comparisons_is_not_exclusive_unless_strict() -> None:
    schema = parts_of("maxLength", a={**TEXT, "anyOf": [{"pattern": f"a{at}"} for at in range(10)]})
    for spent in ("remaining_comparisons", "remaining_containments"):
        budget = LoweringBudget()
        setattr(budget, spent, 100)
        assert lower(schema, strict=False, budget=budget)[1] == ("/oneOf",)
    budget = LoweringBudget()
    budget.remaining_comparisons = 100
    with pytest.raises(UnsupportedSchemaError, match="/oneOf needs too many comparisons: the limit of a request is"):
        lower(schema, strict=True, budget=budget)


def test_usual_alternatives_stay_within_the_comparisons() -> None:
    """Objects of many properties, which differ in one that all require."""
    objects = [
        {"type": "object", "required": ["type", *(f"p{at}" for at in range(20))], "additionalProperties": False,
         "properties": {**{f"p{at}": {"anyOf": [TEXT, {"type": "null"}]} for at in range(20)}, "type": {"const": name}}}
        for name in map(str, range(60))
    ]  # fmt: skip
    budget = LoweringBudget()
    lowered, places = lower({"oneOf": objects}, strict=True, budget=budget)
    assert places == () and len(lowered["anyOf"]) == 60 and "allOf" not in str(lowered)
    assert budget.remaining_comparisons > MAX_COMPARISONS  # an eighth of all steps is left


@pytest.mark.full
@pytest.mark.parametrize("name", ["uniqueItems", "if", *(("contains", "oneOf") if FULL else ())])
def test_the_schemas_of_all_tools_together_end_soon(name: str) -> None:
    properties = dict([*COSTLY[name]["properties"].items()][:60])
    schema = {**COSTLY[name], "properties": properties}
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": schema}} for number in range(128)]
    message = "too large"
    with counted_calls() as num_calls:
        try:
            chat(tools=tools, tool_choice="required")
        except InvalidRequest as error:
            message = error.message
    assert ("too large" in message or "limit" in message) and len(message) < 400
    assert num_calls["python"] < MAX_CALLS


def test_tools_of_usual_size_are_enforced_in_the_largest_number() -> None:
    tags = {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}
    schema = {**each(15, {"type": "string", "description": "x" * 200}), "required": ["p0"]}
    schema["properties"]["tags"] = tags
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": schema}} for number in range(128)]
    request = chat(tools=tools, tool_choice="required")
    assert request.ignored == () and "enum" in str(request.params.structured.grammar)


def test_each_request_has_its_own_budget_and_the_parts_of_one_share_it() -> None:
    half = each(MAX_SCHEMAS * 2 // 3, {})
    for _ in range(3 if FULL else 1):
        lower(half, strict=True)
    budget = LoweringBudget()
    lower(half, strict=True, budget=budget)
    with pytest.raises(ValueError, match="the schemas of the request too large"):
        lower(half, strict=True, budget=budget)


def test_an_exhausted_number_of_alternatives_stays_exhausted() -> None:
    budget = LoweringBudget()
    budget.add_alternatives(9000, "/a")
    for count in (2000, 1):
        with pytest.raises(UnsupportedSchemaError, match="/b needs too many alternatives"):
            budget.add_alternatives(count, "/b")
    budget.spend(1, "/c")


def test_a_schema_is_lowered_once_also_beside_tools_of_the_generic_format(monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.server.openai import structured_fields
    from chairlift.server.openai.chat_request import read_chat
    from chairlift.text.tool_formats.generic import GENERIC
    from support_request_bodies import CHAT_BODY, TOOL, schema_form

    calls: list[Any] = []
    original = structured_fields.lower
    monkeypatch.setattr(structured_fields, "lower", lambda *args, **more: calls.append(args) or original(*args, **more))
    request = read_chat({**CHAT_BODY, "tools": [TOOL], "response_format": schema_form({"type": "object"})}, GENERIC)
    assert request.ignored == ("tools",) and len(calls) == 1
