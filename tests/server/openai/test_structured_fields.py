"""structured_fields.py: the constraint of an output from every field that clients of other servers send."""

import json
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.server.openai.structured_fields import CONSTRAINING_FIELDS, StructuredField, read_structured_output
from support_grammars import grammar_of
from support_json_schema import accepts
from support_request_bodies import chat, completion
from support_shares import for_each

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
PLACE = "/properties/a/uniqueItems"
GRAMMAR = 'start: "a"'
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, {"json_schema": SCHEMA}),
    ({"structured_outputs": {"regex": "a+", "json_object": False}}, {"regex": "a+"}),
    ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ("a", "b")}),
    ({"structured_outputs": {"grammar": GRAMMAR}}, {"grammar": GRAMMAR}),
    ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
    ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
    ({"guided_json": json.dumps(SCHEMA)}, {"json_schema": SCHEMA}),
    ({"guided_regex": "a+"}, {"regex": "a+"}),
    ({"guided_choice": ["a", "b"]}, {"choice": ("a", "b")}),
    ({"guided_grammar": GRAMMAR}, {"grammar": GRAMMAR}),
    ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
    ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ({"response_format": {"type": "regex", "regex": "a+"}}, {"regex": "a+"}),
    ({"response_format": {"type": "grammar", "grammar": GRAMMAR}}, {"grammar": GRAMMAR}),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
]


@for_each(("body", "structure"), CASES)
def test_a_field_of_another_server_constrains_the_output(body: dict[str, Any], structure: dict[str, Any]) -> None:
    for request in (chat(**body), completion(**body)):
        assert request.params.structured == StructuredOutput(**structure) and request.ignored == ()
        assert [request.structured_field] == [*body]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"structured_outputs": {"json": UNIQUE}}, "structured_outputs.json"), ({"guided_json": UNIQUE}, "guided_json"),
        ({"json_schema": json.dumps(UNIQUE)}, "json_schema"),
        ({"response_format": {"type": "json_object", "schema": UNIQUE}}, "response_format.schema"),
    ],
)  # fmt: skip
def test_a_keyword_that_no_grammar_enforces_is_dropped_and_named(body: dict[str, Any], place: str) -> None:
    for request in (chat(**body), completion(**body)):
        assert request.ignored == (place + PLACE,)
        assert request.params.structured is not None
        assert "uniqueItems" not in str(request.params.structured.json_schema)


@pytest.mark.parametrize("strict", [True, False, None])
def test_an_integer_or_a_number_is_a_number_and_named(strict: bool | None) -> None:
    schema = {"properties": {"v": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "required": ["v"]}
    holder = {"name": "n", "schema": schema, "strict": strict}
    request = chat(response_format={"type": "json_schema", "json_schema": holder})
    assert request.ignored == ("response_format.json_schema.schema/properties/v/oneOf",)
    grammar = grammar_of(json_schema=request.params.structured.schema)
    values = ({"v": 1}, {"v": 1.5}, {"v": "a"}, 5, {})
    assert [accepts(grammar, value) for value in values] == [True, True, False, False, False]


@pytest.mark.parametrize("strict", [True, False, None])
def test_types_of_a_value_by_several_schemas(strict: bool | None) -> None:
    nullable = [{"type": "object", "required": [name], "nullable": True} for name in "ab"]
    schema = {
        "type": "object", "required": ["v", "list", "one", "low"], "$defs": {"low": {"minimum": 1}},
        "properties": {
            "v": {"type": "null", "$ref": "#/$defs/low"},
            "list": {"oneOf": [{"type": "array", "items": {"type": name}} for name in ("integer", "number")]},
            "one": {"oneOf": nullable}, "low": {"type": ["integer", "null"], "allOf": [{"$ref": "#/$defs/low"}]},
        },
    }  # fmt: skip
    request = chat(response_format={"type": "json_schema", "json_schema": {
        "name": "n", "schema": schema, "strict": strict,
    }})  # fmt: skip
    places = [f"response_format.json_schema.schema/properties/{name}/oneOf" for name in ("list", "one")]
    assert list(request.ignored) == places
    grammar = grammar_of(json_schema=request.params.structured.schema)
    value: dict[str, Any] = {"v": None, "list": [1, 1.5], "one": None, "low": None}
    for change in ({}, {"low": 1}, {"one": {"a": 1}}, {"list": [1]}, {"list": []}):
        assert accepts(grammar, value | change), change
    for change in ({"v": 1}, {"list": ["a"]}, {"one": {"a": 1, "b": 1}}, {"one": {}}, {"low": 0}, {"low": "a"}):
        assert not accepts(grammar, value | change), change


@pytest.mark.parametrize("strict", [True, False])
def test_parts_that_overlap_are_alternatives_unless_strict(strict: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
              "oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}]}  # fmt: skip
    holder = {"name": "n", "schema": schema, "strict": strict}
    request = chat(response_format={"type": "json_schema", "json_schema": holder})
    assert request.ignored == (() if strict else ("response_format.json_schema.schema/oneOf",))
    grammar = grammar_of(json_schema=request.params.structured.schema)
    assert [accepts(grammar, value) for value in ({"a": 1}, {"a": 1, "b": 2}, {})] == [True, not strict, False]


def test_options_without_effect_are_named() -> None:
    options = {"regex": "a", "disable_fallback": True, "backend": "xgrammar", "disable_any_whitespace": False}
    request = chat(structured_outputs=options, guided_decoding_backend="guidance", length_penalty=1.0)
    assert set(request.ignored) == {
        "structured_outputs.disable_fallback", "structured_outputs.backend", "guided_decoding_backend",
        "length_penalty",
    }  # fmt: skip


def rejection(body: dict[str, Any]) -> InvalidRequest:
    """Return the error with which both routes reject a body."""
    errors = []
    for read in (chat, completion):
        with pytest.raises(InvalidRequest) as caught:
            read(**body)
        errors.append(caught.value)
    assert errors[0].message == errors[1].message
    return errors[0]


@for_each(
    ("body", "param", "message"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "needs exactly one of json, regex"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "got json and regex"),
        ({"structured_outputs": "x"}, "structured_outputs", "must be an object"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs",
         "structured_outputs.whitespace_pattern is not supported"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structural_tag is not supported"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "structured_outputs.regex must be a string"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "structured_outputs.choice must not be empty"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs", "structured_outputs.json_object must be"),
        ({"guided_json": "{"}, "guided_json", "guided_json must be JSON"),
        ({"guided_json": {"type": "banana"}}, "guided_json", "guided_json cannot be enforced: /type"),
        ({"guided_regex": "(" * 65}, "guided_regex", "guided_regex must not nest brackets"),
        ({"guided_choice": []}, "guided_choice", "guided_choice must not be empty"),
        ({"guided_grammar": 5}, "guided_grammar", "guided_grammar must be a string"),
        ({"response_format": {"type": "regex", "pattern": "a"}}, "response_format", "needs a string in"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type", "must be text, json_object"),
    ],
)  # fmt: skip
def test_an_invalid_constraint_is_400_under_the_name_that_the_client_used(
    body: dict[str, Any], param: str, message: str
) -> None:
    error = rejection(body)
    assert error.details["param"] == param and message in error.message


@for_each("one", [*CASES[::4], ({"choice": ["a"]}, {})])
@for_each("other", [{"regex": "b"}, {"response_format": {"type": "json_object", "schema": {}}}])
def test_two_constraints_are_400(one: tuple[dict[str, Any], Any], other: dict[str, Any]) -> None:
    if one[0].keys() == other.keys():
        other = {"structured_outputs": {"regex": "b"}}
    message = rejection({**one[0], **other}).message
    assert "cannot be combined with" in message and all(name in message for name in (*one[0], *other))


def test_every_constraining_field_is_read() -> None:
    assert read_structured_output({}, LoweringBudget()) == StructuredField()
    assert {name for body, _ in CASES for name in body} | {"regex", "grammar", "choice"} == {*CONSTRAINING_FIELDS}
