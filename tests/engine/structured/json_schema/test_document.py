"""The schema document: its form is checked, and references inside it are resolved."""

from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import (
    Node,
    SchemaDocument,
    cost_of,
    join_uri,
    subschemas,
    type_names,
    without_null_keywords,
)
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from support_json_schema import check, rejection
from support_shares import for_each


@for_each(
    ("base", "reference", "joined"),
    [
        ("http://a/b/c", "d", "http://a/b/d"), ("http://a/b/c", "../d#e", "http://a/d#e"), ("http://a/b", "#c", "http://a/b#c"),
        ("http://a/b?x", "/d?y#z", "http://a/d?y#z"), ("http://a", "d", "http://a/d"), ("", "d", "d"), ("d", "", "d"),
        ("http://a/b", "urn:x:y#z", "urn:x:y#z"), ("http://a/b/", "./", "http://a/b/"), ("urn:a:b", "#c", "urn:a:b#c"),
        ("https://a/b", "//c/d", "https://c/d"), ("x/y#z", "w", "x/w"), ("http://a/b/c/", "..", "http://a/b/"),
    ],
)  # fmt: skip
def test_uris_are_joined(base: str, reference: str, joined: str) -> None:
    assert join_uri(base, reference) == joined


def test_pointers_do_not_repeat_long_names() -> None:
    names = ["x" * 1000, "x" * 999 + "y", "x" * 255 + "~/"]
    schema = {"properties": {name: {"items": {"minItems": -1}} for name in names}}
    pointers = {node.pointer for node in subschemas(Node(schema, "", ""))}
    assert len(pointers) == 3 and max(map(len, pointers)) < 400 and all(each.count("/") == 2 for each in pointers)
    definitions = {names[0]: {"const": "a"}, names[1]: {"const": "b"}}
    check({"oneOf": [{"$ref": f"#/$defs/{name}"} for name in definitions], "$defs": definitions}, ["a", "b"], ["c"])


def test_uris_are_not_too_long() -> None:
    part = {"$id": "a/" * 2000}
    for schema in ({"$id": "a" * 10_000}, {**part, "anyOf": [{**part, "not": part}]}):
        assert "$id has more than 8192 characters, the limit" in rejection(schema)


def test_a_type_is_listed_once() -> None:
    assert without_null_keywords({"type": ["string", "null", "string"], "enum": [1, 1]}) == {
        "type": ["string", "null"], "enum": [1, 1],
    }  # fmt: skip


def test_the_many_annotations_of_a_schema_are_work() -> None:
    assert [cost_of(Node({f"x-{at}": 1 for at in range(count)}, "", "")) for count in (0, 32, 40, 1032)] == [
        1, 1, 2, 126,
    ]  # fmt: skip


@for_each(
    "schema",
    [
        {"$ref": "#/$defs/word", "$defs": {"word": {"const": "x"}}},
        {"$ref": "#w", "$defs": {"word": {"$anchor": "w", "const": "x"}}},
        {"$ref": "#/$defs/a~1b~0%25%22", "$defs": {'a/b~%"': {"const": "x"}}},
        {"$id": "http://a.invalid/root", "$ref": "word", "$defs": {"w": {"$id": "/word", "const": "x"}}},
        {"$id": "urn:example:root", "$ref": "urn:example:root#/$defs/w", "$defs": {"w": {"const": "x"}}},
        {"$id": "http://a.invalid/r", "$ref": "b#c",
         "$defs": {"w": {"$id": "b", "$defs": {"c": {"$anchor": "c", "const": "x"}}}}},
        {"$dynamicRef": "#w", "$defs": {"word": {"$dynamicAnchor": "w", "const": "x"}}},
        {"$ref": "#/anyOf/0", "anyOf": [{"const": "x"}, {"const": "y"}]},
        {"$ref": "#/$defs/one", "$defs": {"one": {"$ref": "#/$defs/two"}, "two": {"const": "x"}}},
        {"allOf": [{"$ref": "#/$defs/t", "minLength": 1}],
         "$defs": {"t": {"maxLength": 1, "pattern": "x", "type": "string"}}},
    ],
)  # fmt: skip
def test_references_inside_the_document_are_followed(schema: Any) -> None:
    check(schema, ["x"], ["y", 1, ""])


def test_a_recursive_reference_is_a_recursive_grammar() -> None:
    tree = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "not": {"not": {"$ref": "#"}}},
        "additionalProperties": False,
    }
    check(tree, [{}, {"next": {"next": {}}}, {"not": 1}], [{"next": 1}, {"next": {"next": []}}, {"not": {}}])
    check(
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
        [[], [[], [[]]]],
        [[1]],
    )


def test_a_dynamic_reference_goes_to_the_outermost_anchor() -> None:
    schema = {
        "$id": "http://a.invalid/root", "$dynamicAnchor": "item", "anyOf": [{"type": "string"}, {"$ref": "list"}],
        "$defs": {"list": {"$id": "list", "type": "array", "items": {"$dynamicRef": "#item"},
         "$defs": {"i": {"$dynamicAnchor": "item"}}}},
    }  # fmt: skip
    check(schema, ["a", ["a", ["b"]]], [1, [1], ["a", {}]])
    elsewhere = {
        name: {"$id": name, "$defs": {"i": {"$dynamicAnchor": "item"}}, "$dynamicRef": "#item"} for name in "ab"
    }
    assert "depends on the path" in rejection({"$id": "http://a.invalid/", "$ref": "a", "$defs": elsewhere})


@for_each(
    ("schema", "message"),
    [
        ({"type": "text"}, "/type is not a type"), ({"properties": {"a": 1}},
         "/properties/a must be a schema, got int"),
        ({"minimum": "3"}, "/minimum must be a number"), ({"minLength": 1.5}, "/minLength must be a count"),
        ({"minItems": -1}, "/minItems must be a count"), ({"required": "a"}, "/required must be a list of strings"),
        ({"enum": 1}, "/enum must be a list"), ({"$ref": 1}, "/$ref must be a string"),
         ({"allOf": {}}, "/allOf must be a list"),
        ({"properties": []}, "/properties must be an object"),
         ({"uniqueItems": 1}, "/uniqueItems must be true or false"),
        ({"dependentRequired": {"a": "b"}}, "/dependentRequired must be an object of lists"),
        ({"$ref": "#/absent"}, "/$ref refers to nothing: /absent"), ({"$ref": "#absent"}, "/$ref refers to nothing"),
        ({"$ref": "#/enum", "enum": [1]}, "/$ref does not refer to a schema"),
        ({"$ref": "http://a.invalid/b"}, "/$ref refers to another document: http://a.invalid/b"),
        ({"properties": {"a": {"$recursiveRef": "#"}}}, "/properties/a/$recursiveRef is not supported"),
        ({"items": {"not": {"a": 1}, "type": {}}}, "/items/type is not a type"), (False, "schema false"),
    ],
)  # fmt: skip
def test_a_malformed_schema_is_rejected_with_its_place(schema: Any, message: str) -> None:
    assert message in rejection(schema)


def test_keywords_without_effect_and_unused_definitions_may_be_malformed() -> None:
    check({"type": "string", "required": True, "items": 5, "minimum": "a", "uniqueItems": True}, ["a"], [1])
    check({"type": "null", "$defs": {"a": {"type": "text"}, "b": 5}, "definitions": None}, [None], [1])
    for name in ("a", "b", "c/items"):
        broken = {"$defs": {"a": {"type": "text"}, "b": 5, "c": {"items": {"minLength": "a"}}}}
        assert " does not refer to a schema" in rejection({**broken, "$ref": f"#/$defs/{name}"}) or name != "b"
        assert rejection({**broken, "$ref": f"#/$defs/{name}"}).startswith("/$")
    assert rejection({"$ref": "#/x/y", "x": {"y": {"items": {"properties": 5}}}}) == (
        "/x/y/items/properties must be an object, got 5"
    )
    check({"$ref": "#/x", "x": {"items": {"type": "null"}}}, [[None]], [[1]])


def test_the_walk_visits_schemas_only() -> None:
    schema = {
        "properties": {"enum": {}},
        "enum": [{"$ref": 1}],
        "default": {"type": 1},
        "items": [True],
        "dependencies": {"a": []},
    }
    root = SchemaDocument(schema, LoweringBudget()).root
    assert [node.pointer for node in subschemas(root)] == ["/properties/enum", "/items/0"]
    assert Node({"type": "null", "not": {}}, "", "").reduced("not").schema == {"type": "null"}
    assert type_names({"type": "null"}) == ["null"] and len(type_names({})) == 6
    assert UnsupportedSchemaError("", "is bad").args == ("/ is bad",)


@for_each(
    ("schema", "expected"),
    [
        ({"required": None, "properties": {"a": {"items": None, "type": "array"}}},
         {"properties": {"a": {"type": "array"}}}),
        ({"anyOf": [{"type": "string", "enum": None}], "not": None}, {"anyOf": [{"type": "string"}]}),
        ({"properties": {"enum": {"pattern": None}, "const": {"type": None}}},
         {"properties": {"enum": {}, "const": {}}}),
        ({"$defs": {"default": {"format": None}}, "items": [{"type": None}]},
         {"$defs": {"default": {}}, "items": [{}]}),
        ({"const": None, "enum": [None, {"a": None}], "default": {"type": None}, "examples": [{"a": None}]},
         {"const": None, "enum": [None, {"a": None}], "default": {"type": None}, "examples": [{"a": None}]}),
        (True, True),
    ],
)  # fmt: skip
def test_a_keyword_that_is_null_is_left_out(schema: Any, expected: Any) -> None:
    assert without_null_keywords(schema) == expected


def test_a_dialect_has_no_effect() -> None:
    for name in ("", "https://spec.openapis.org/oas/3.1/dialect/base", "http://json-schema.org/draft-07/schema#"):
        check({"type": "string", "enum": ["a"], "$schema": name}, ["a"], ["b", 1])
