"""object_schema, with_optional, array_schema, nullable: make JSON schemas."""

from typing import Any

Schema = dict[str, Any]


def object_schema(**properties: Schema) -> Schema:
    """Return the schema of an object that always has these properties."""
    return {"type": "object", "required": [*properties], "properties": properties}


def with_optional(schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of an object that may have these properties, too."""
    return {**schema, "properties": {**schema["properties"], **properties}}


def array_schema(items: Schema, least: int = 0) -> Schema:
    """Return the schema of an array of at least `least` items."""
    return {"type": "array", "items": items, "minItems": least}


def nullable(schema: Schema) -> Schema:
    """Return a schema that also allows null."""
    return {"anyOf": [schema, {"type": "null"}]}
