"""is_contained: schemas whose values all match another one."""

from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.contained_schemas import is_contained
from chairlift.engine.structured.json_schema.document import SchemaDocument
from chairlift.engine.structured.json_schema.implied_types import ImpliedTypes
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes
from support_shares import for_each

INTEGER, NUMBER, TEXT, NULL = ({"type": name} for name in ("integer", "number", "string", "null"))
COLORS = {"type": "string", "enum": ["red", "blue"]}
NEEDS_A = {"required": ["a"]}


def texts(**limits: int) -> dict[str, Any]:
    return {"type": "string", **limits}


def integers(**limits: Any) -> dict[str, Any]:
    return {"type": "integer", **limits}


def numbers(**limits: Any) -> dict[str, Any]:
    return {"type": "number", **limits}


def array(items: Any, **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def contained(inner: Any, outer: Any) -> bool:
    definitions = {
        "text": TEXT,
        "a": NEEDS_A,
        "color": {"enum": ["red"], "nullable": True},
        "loop": {"$ref": "#/$defs/loop"},
    }
    document = SchemaDocument({"oneOf": [inner, outer], "$defs": definitions}, LoweringBudget())
    types = PossibleTypes(document, ImpliedTypes(document))
    return is_contained(types, document.root.child("oneOf", 0), document.root.child("oneOf", 1))


@for_each(
    ("inner", "outer", "expected"),
    [
        (INTEGER, NUMBER, True), (NUMBER, INTEGER, False), (TEXT, {**TEXT, "title": "t"}, True), (TEXT, {}, True),
        (TEXT, True, True), (False, TEXT, True), (TEXT, False, False), (True, {}, True), (True, TEXT, False),
        ({}, TEXT, False), ({"type": ["string", "null"]}, TEXT, False), (TEXT, {"type": ["string", "null"]}, True),
        # Listed values.
        (COLORS, TEXT, True), (TEXT, COLORS, False), (COLORS, {"enum": ["red", "blue", 1]}, True),
        (COLORS, {"const": "red"}, False), ({"const": 1}, INTEGER, True), ({"const": 1.5}, INTEGER, False),
        ({"const": 7}, integers(minimum=5), True), ({"const": 4}, integers(minimum=5), False), (COLORS,
         texts(minLength=3), True), (COLORS, texts(maxLength=3), False), ({"const": {"a": 1}}, NEEDS_A, True),
        ({"const": {}}, NEEDS_A, False), ({"const": 6}, {"multipleOf": 3}, True), ({"const": 7}, {"multipleOf": 3},
         False), (NULL, {"enum": ["a", None]}, True), ({"type": "boolean"}, {"enum": [True]}, False),
        ({"type": "boolean"}, {"enum": [True, False]}, True), (COLORS, {**TEXT, "pattern": "e"}, False),
        ({"const": [1]}, {"items": INTEGER}, False), ({"enum": ["red", 1], "type": "string"}, COLORS, True),
        # Types that keywords are about.
        (TEXT, NEEDS_A, True), (NEEDS_A, {"type": "object"}, True), (NEEDS_A, TEXT, False), (NULL, {"minLength": 1},
         True), ({"type": ["string", "object"], **NEEDS_A}, NEEDS_A, True),
        # Nullable.
        ({**TEXT, "nullable": True}, TEXT, False), (TEXT, {**TEXT, "nullable": True}, True), (NULL, {**TEXT,
         "nullable": True}, True), ({**COLORS, "nullable": True}, {"type": ["string", "null"]}, True),
        ({"$ref": "#/$defs/text", "nullable": True}, {"anyOf": [TEXT, NULL]}, True),
        ({"not": NULL, "nullable": True}, {"not": NULL}, False), ({"not": TEXT, "nullable": True}, {"not": TEXT},
         False), (NULL, {"not": TEXT, "nullable": True}, True),
        # A conjunct that is nullable.
        *(({"type": ["string", "null"], **part}, outer, expected) for part in (
            {"allOf": [{"enum": ["red"], "nullable": True}]}, {"allOf": [{"const": "red", "nullable": True}]},
            {"allOf": [{"allOf": [COLORS], "nullable": True}]}, {"$ref": "#/$defs/color"},
            {"anyOf": [{"enum": ["red"], "nullable": True}]}, {"oneOf": [{"$ref": "#/$defs/color"}]},
            {"enum": ["red"], "nullable": True},
        ) for outer, expected in (
            (COLORS, False), ({"enum": ["red", "blue"]}, False), ({**COLORS, "nullable": True}, True),
            ({"enum": ["red", "blue", None]}, True), ({"anyOf": [COLORS, NULL]}, True),
        )),
        ({"type": ["string", "null"], "allOf": [{"not": NULL, "nullable": True}]}, {"not": NULL}, False),
        ({**TEXT, "allOf": [{"enum": ["red"], "nullable": True}]}, COLORS, True),
        ({"enum": ["red", None], "allOf": [{"type": ["string", "null"]}]}, COLORS, False),
        ({"type": ["string", "null"], "enum": ["red", None], "const": "red"}, COLORS, True),
        ({"enum": ["red", 1], "allOf": [{"enum": ["red", 2]}]}, {"enum": ["red"]}, True),
    ],
)  # fmt: skip
def test_types_and_values(inner: Any, outer: Any, expected: bool) -> None:
    assert contained(inner, outer) is expected


@for_each(
    ("inner", "outer", "expected"),
    [
        (texts(minLength=2), TEXT, True), (TEXT, texts(minLength=2), False), (TEXT, texts(minLength=0), True),
        (texts(minLength=3), texts(minLength=1), True), (texts(minLength=1), texts(minLength=3), False),
        (texts(maxLength=5), texts(maxLength=10), True), (texts(maxLength=10), texts(maxLength=5), False),
        (TEXT, texts(maxLength=5), False), (texts(minLength=2, maxLength=3), texts(minLength=1, maxLength=3), True),
        (integers(minimum=5), integers(minimum=0), True), (integers(minimum=0), integers(minimum=5), False),
        (integers(maximum=5), numbers(maximum=5), True), (integers(exclusiveMinimum=4), integers(minimum=5), True),
        (numbers(exclusiveMinimum=4), numbers(minimum=5), False), (numbers(exclusiveMinimum=4), numbers(minimum=4),
         True), (numbers(minimum=4), numbers(exclusiveMinimum=4), False), (integers(minimum=4.5), integers(minimum=5),
         True), (numbers(exclusiveMaximum=4), numbers(maximum=4), True), (integers(exclusiveMaximum=4),
         integers(maximum=3), True), (numbers(maximum=4), numbers(exclusiveMaximum=4), False),
        (integers(minimum=1), {"minimum": 0}, True), (INTEGER, {"minimum": 0}, False),
        # JSON Schema 4.
        (numbers(minimum=4, exclusiveMinimum=True), numbers(exclusiveMinimum=4), True),
        (numbers(minimum=4), numbers(minimum=4, exclusiveMinimum=True), False),
        (numbers(minimum=4, exclusiveMinimum=False), numbers(minimum=4), True),
        (numbers(maximum=4, exclusiveMaximum=True), numbers(maximum=4), True),
        (numbers(maximum=4), numbers(maximum=4, exclusiveMaximum=True), False),
        (integers(multipleOf=4), integers(multipleOf=2), True), (integers(multipleOf=2), integers(multipleOf=4), False),
        (INTEGER, {"multipleOf": 0.5}, True), (NUMBER, {"multipleOf": 0.5}, False),
        ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "a"}, True), ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"},
         False), (TEXT, {**TEXT, "format": "color"}, True), (TEXT, {**TEXT, "format": "date"}, False),
        ({**TEXT, "format": "date"}, {**TEXT, "format": "date"}, True),
    ],
)  # fmt: skip
def test_bounds(inner: Any, outer: Any, expected: bool) -> None:
    assert contained(inner, outer) is expected


@for_each(
    ("inner", "outer", "expected"),
    [
        (array(INTEGER), array(NUMBER), True), (array(NUMBER), array(INTEGER), False), (array(INTEGER), {"type":
         "array"}, True), ({"type": "array"}, array(INTEGER), False), ({"type": "array"}, array({}), True),
        (array(array(COLORS)), array(array(TEXT)), True), (array(NEEDS_A), array({"type": "object"}), True),
        (array(TEXT, minItems=2), array(TEXT, minItems=1), True), (array(TEXT), array(TEXT, minItems=1), False),
        (array(TEXT, maxItems=2), array(TEXT, maxItems=3), True), (array(TEXT), array(TEXT, maxItems=3), False),
        ({"prefixItems": [INTEGER, TEXT], "items": False}, array({"type": ["number", "string"]}), True),
        ({"prefixItems": [INTEGER, TEXT]}, array({"type": ["number", "string"]}), False),
        ({"prefixItems": [INTEGER, TEXT]}, {"prefixItems": [NUMBER]}, True), ({"prefixItems": [NUMBER]},
         {"prefixItems": [INTEGER]}, False), (array(INTEGER), {"prefixItems": [NUMBER, NUMBER]}, True),
        (array(INTEGER), {"prefixItems": [NUMBER], "items": False}, False),
        (array(INTEGER, maxItems=1), {"prefixItems": [NUMBER], "items": False}, True),
        ({"prefixItems": [TEXT], "items": False}, {"type": "array", "maxItems": 1}, True),
        # JSON Schema 7.
        ({"items": [INTEGER], "additionalItems": False}, array(NUMBER), True), (array(INTEGER), {"items": [NUMBER],
         "additionalItems": NUMBER}, True), (array(NUMBER), {"items": [NUMBER], "additionalItems": INTEGER}, False),
        (array(INTEGER, uniqueItems=True), array(NUMBER), True), (array(INTEGER), array(NUMBER, uniqueItems=True),
         False), (array(INTEGER), array(NUMBER, uniqueItems=False), True),
        ({"type": "array", "contains": TEXT}, {"contains": TEXT}, True), ({"type": "array", "contains": TEXT},
         {"contains": TEXT, "minContains": 2}, False), ({"type": "array"}, {"contains": TEXT}, False),
    ],
)  # fmt: skip
def test_arrays(inner: Any, outer: Any, expected: bool) -> None:
    assert contained(inner, outer) is expected


@for_each(
    ("inner", "outer", "expected"),
    [
        (record(["a", "b"]), record(["a"]), True), (record(["a"]), record(["a", "b"]), False),
        ({"required": ["a", "b"]}, NEEDS_A, True), (record([], a=INTEGER), record([], a=NUMBER), True),
        (record([], a=NUMBER), record([], a=INTEGER), False), (record([], a=TEXT), {"type": "object"}, True),
        (record([], a=TEXT, b=TEXT), record([], a=TEXT), True), (record([], a=TEXT), record([], a=TEXT, b=TEXT), False),
        (record([], a=TEXT), record([], a=TEXT, b={}), True),
        ({**record([], a=TEXT), "additionalProperties": False}, record([], a=TEXT, b=TEXT), True),
        ({**record([], a=TEXT), "additionalProperties": COLORS}, record([], a=TEXT, b=TEXT), True),
        ({**record([], a=TEXT), "additionalProperties": INTEGER}, record([], a=TEXT, b=TEXT), False),
        ({"additionalProperties": INTEGER}, {"additionalProperties": NUMBER}, True),
        ({"additionalProperties": NUMBER}, {"additionalProperties": INTEGER}, False),
        ({"type": "object"}, {"additionalProperties": INTEGER}, False),
        ({**record([], a=TEXT), "additionalProperties": False}, {"additionalProperties": TEXT}, True),
        ({**record([], a=INTEGER), "additionalProperties": False}, {"additionalProperties": TEXT}, False),
        ({**record([], a=TEXT), "additionalProperties": False}, {"additionalProperties": False}, False),
        ({"patternProperties": {"^a": INTEGER}}, {"patternProperties": {"^a": NUMBER}}, True),
        ({"patternProperties": {"^a": NUMBER}}, {"patternProperties": {"^a": INTEGER}}, False),
        ({"patternProperties": {"^b": INTEGER}}, {"patternProperties": {"^a": NUMBER}}, False),
        ({"patternProperties": {"^a": INTEGER}, "additionalProperties": False}, {"additionalProperties": NUMBER}, True),
        ({"patternProperties": {"^a": TEXT}, "additionalProperties": False}, {"additionalProperties": NUMBER}, False),
        ({"patternProperties": {"^a": TEXT}, "additionalProperties": False}, record([], ab=TEXT), False),
        ({"minProperties": 2}, {"minProperties": 1}, True), ({"minProperties": 1}, {"minProperties": 2}, False),
        (record(["a", "b"]), {"minProperties": 2}, True), ({"maxProperties": 1}, {"maxProperties": 2}, True),
        ({"type": "object"}, {"maxProperties": 2}, False), ({"propertyNames": COLORS}, {"propertyNames": TEXT}, True),
        ({"propertyNames": {"minLength": 2}}, {"propertyNames": {"minLength": 3}}, False), ({"type": "object"},
         {"propertyNames": {"maxLength": 3}}, False), ({"type": "object"}, {"propertyNames": TEXT}, True),
        ({"dependentRequired": {"a": ["b"]}}, {"dependentRequired": {"a": ["b"]}}, True),
        ({"type": "object"}, {"dependentRequired": {"a": ["b"]}}, False),
        ({**record([], a=TEXT), "unevaluatedProperties": False}, {**record([], a=TEXT), "unevaluatedProperties": False},
         True),
        ({**record([], a=TEXT), "allOf": [record([], b=TEXT)], "unevaluatedProperties": False},
         {**record([], a=TEXT), "unevaluatedProperties": False}, False),
    ],
)  # fmt: skip
def test_objects(inner: Any, outer: Any, expected: bool) -> None:
    assert contained(inner, outer) is expected


@for_each(
    ("inner", "outer", "expected"),
    [
        (TEXT, {"$ref": "#/$defs/text"}, True), ({"$ref": "#/$defs/text"}, {"type": ["string", "null"]}, True),
        ({"$ref": "#/$defs/a", "type": "object"}, NEEDS_A, True), (COLORS, {"$ref": "#/$defs/text", "minLength": 3},
         True), (COLORS, {"$ref": "#/$defs/text", "minLength": 4}, False), (TEXT, {"$ref": "http://a.invalid/b"},
         False), ({"$ref": "#/$defs/loop"}, TEXT, False), (TEXT, {"$ref": "#/$defs/loop"}, False),
        ({"allOf": [record(["a"]), {"required": ["b"]}]}, record(["a", "b"]), True), ({"allOf": [TEXT, {"minLength":
         3}]}, texts(minLength=2), True), (texts(minLength=3), {"allOf": [TEXT, {"minLength": 2}]}, True),
        (texts(minLength=1), {"allOf": [TEXT, {"minLength": 2}]}, False),
        ({"allOf": [record([], a=INTEGER), record([], b=INTEGER)]}, record([], a=NUMBER, b=NUMBER), True),
        (TEXT, {"anyOf": [NULL, TEXT]}, True), (TEXT, {"anyOf": [NULL, COLORS]}, False),
        ({"anyOf": [NULL, COLORS]}, {"anyOf": [TEXT, NULL]}, True), ({"anyOf": [NULL, TEXT]}, {"anyOf": [COLORS,
         NULL]}, False), ({"oneOf": [COLORS, INTEGER]}, {"type": ["string", "number"]}, True),
        ({"anyOf": [INTEGER, TEXT]}, {"anyOf": [NUMBER, TEXT]}, True),
        (TEXT, {"not": NULL}, False), ({"not": NULL}, {"not": NULL}, True), (TEXT, {"oneOf": [TEXT, TEXT]}, False),
        ({"if": NULL, "then": TEXT}, {"if": NULL, "then": TEXT}, True), ({"if": NULL, "then": TEXT}, {"if": NULL,
         "then": COLORS}, False), ({**TEXT, "x-other": 1}, {**TEXT, "x-note": 2}, True),
    ],
)  # fmt: skip
def test_several_schemas_of_one_value(inner: Any, outer: Any, expected: bool) -> None:
    assert contained(inner, outer) is expected


def test_schemas_within_themselves_are_not_compared_for_ever() -> None:
    trees = {
        name: {"type": "object", "properties": {"next": {"$ref": f"#/$defs/{name}"}, "v": value}, "required": ["v"]}
        for name, value in (("one", INTEGER), ("other", NUMBER))
    }
    document = SchemaDocument(
        {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}], "$defs": trees}, LoweringBudget()
    )
    types, root = PossibleTypes(document, ImpliedTypes(document)), document.root
    assert is_contained(types, root.child("oneOf", 0), root.child("oneOf", 1)) is False
    assert is_contained(types, root.child("oneOf", 0), root.child("oneOf", 0)) is True


def test_nothing_is_contained_once_the_budget_is_spent() -> None:
    budget = LoweringBudget()
    budget.remaining_containments = 0
    document = SchemaDocument({"oneOf": [COLORS, TEXT]}, budget)
    types, root = PossibleTypes(document, ImpliedTypes(document)), document.root
    assert is_contained(types, root.child("oneOf", 0), root.child("oneOf", 1)) is False
