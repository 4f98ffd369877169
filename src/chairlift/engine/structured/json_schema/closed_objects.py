"""close_objects: limits objects to the properties that a JSON Schema lists, where it does not say which others may be.

xgrammar, which vLLM and SGLang use, and llama.cpp do the same: a model that may add properties often adds them until
max_tokens. JSON Schema itself allows others; `additionalProperties: true` does here, too.
"""

from collections.abc import Iterator
from typing import Any

from chairlift.engine.structured.json_schema.document import KEYWORDS, Schema, without_null_keywords

_COMBINING = frozenset({
    "allOf", "oneOf", "not", "if", "then", "else", "contains", "propertyNames", "dependentSchemas", "dependentRequired",
    "dependencies", "unevaluatedProperties", "unevaluatedItems", "additionalItems", "$dynamicRef", "$recursiveRef",
})  # fmt: skip
"""Keywords with which several schemas apply to one value, or their complements: nothing below them is closed."""

_LIMITING = frozenset({"additionalProperties", "patternProperties", "minProperties", "maxProperties", "const", "enum"})
"""Keywords with which a schema itself says which further properties an object may have, or how many."""

_DEFINITIONS = frozenset({"$defs", "definitions"})


class _UnknownReferenceError(Exception):
    """A reference to something else than a JSON pointer of the document."""


def close_objects(schema: Schema) -> Schema:
    """Return the schema with `additionalProperties: false` in each object that has `properties` and may be closed.

    Each value of the result matches `schema`. An object stays open if it has a keyword about further properties, or is
    combined with other schemas (allOf, oneOf, not, if ...), also by a reference. A document with references by name
    is returned as it is.
    """
    schema = without_null_keywords(schema)
    if not isinstance(schema, dict):
        return schema
    try:
        closed, combined = _Search(schema).run()
    except _UnknownReferenceError:
        return schema
    return _copy(schema, closed - combined)


class _Search:
    """Finds the objects of a document that may be closed. Schemas are known by id(), since JSON shares no values."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._closable: set[int] = set()
        self._combined: set[int] = set()

    def run(self) -> tuple[set[int], set[int]]:
        """Return the schemas that can be closed, and those that are combined with others somewhere."""
        pending, visited, combined = [self._root], set[int](), list[Any]()
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict) or id(schema) in visited:
                continue
            visited.add(id(schema))
            keywords = schema.keys() & KEYWORDS
            in_place = keywords & {"$ref", "anyOf"}
            # A closed object would forbid what another schema of the same value asks for.
            if keywords & _COMBINING or (in_place and len(keywords - {"type", "nullable"}) > 1):
                combined.append(schema)
            elif "$ref" in schema:
                pending.append(self._target(schema["$ref"]))
            else:
                if _may_be_closed(schema):
                    self._closable.add(id(schema))
                pending += _values_inside(schema)
        self._mark_combined(combined)
        return self._closable, self._combined

    def _mark_combined(self, pending: list[Any]) -> None:
        """Mark everything inside of these values and what they refer to."""
        while pending:
            value = pending.pop()
            if not isinstance(value, dict | list) or id(value) in self._combined:
                continue
            self._combined.add(id(value))
            if isinstance(value, dict) and isinstance(value.get("$ref"), str):
                pending.append(self._target(value["$ref"]))
            pending += value.values() if isinstance(value, dict) else value

    def _target(self, reference: Any) -> Any:
        """Return what a reference such as #/$defs/name refers to."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")) or "%" in reference:
            raise _UnknownReferenceError
        value: Any = self._root
        for token in reference.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            is_resource = isinstance(value, dict) and "$id" in value and value is not self._root
            if not isinstance(value, dict) or name not in value or is_resource:
                raise _UnknownReferenceError
            value = value[name]
        return value


def _may_be_closed(schema: dict[str, Any]) -> bool:
    """Return whether a schema lists properties, among them all required ones, and says nothing about others."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or schema.keys() & _LIMITING:
        return False
    if False in properties.values():  # a name that may not be there, in contrast to others
        return False
    return all(isinstance(each, str) and each in properties for each in required)


def _values_inside(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield the schemas of the parts of a value, and those of which it matches any."""
    for keyword in ("properties", "patternProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from schema[keyword].values()
    for keyword in ("items", "prefixItems", "additionalProperties", "anyOf"):
        value = schema.get(keyword)
        yield from value if isinstance(value, list) else [value]


def _copy(value: Any, closed: set[int]) -> Any:
    if isinstance(value, list):
        return [_copy(each, closed) for each in value]
    if not isinstance(value, dict):
        return value
    copied = {name: _copy(each, closed) for name, each in value.items()}
    return copied | {"additionalProperties": False} if id(value) in closed else copied
