"""Random JSON Schemas whose outputs a model with random weights can complete."""

import random
from collections import Counter
from typing import Any

Schema = Any

KEYWORDS = (
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems",
    "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "anyOf", "oneOf", "allOf", "$ref", "$defs", "nested",
)  # fmt: skip
PATTERNS = ("^[a-c]{1,4}$", "^x[0-9]{2}$", "^(red|green|blue)$", "^[A-Z][a-z]{0,5}$", "^$")
FORMATS = ("date", "ipv6", "uuid", "ipv4")
CONSTANTS = (0, -7, 2.5, True, False, None, "", "a b", "\u00e4\U0001f6a1", 'quo"te', [1, "two"], {"k": [None]})


class SchemaGenerator:
    """Generates schemas from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"schemas {seed}")
        self._defs: dict[str, Schema] = {}

    def generate(self, depth: int = 0) -> Schema:
        """Generate a schema; deep ones have no schemas inside."""
        plain = (self._string, self._integer, self._constant, self._enum, self._patterned, self._all_of)
        deep = (self._object, self._object, self._array, self._tuple, self._any_of, self._one_of, self._ref)
        return self._rng.choice(plain if depth > 2 else (*plain, *deep, *deep))(depth)

    def generate_with_definitions(self) -> Schema:
        """Generate a schema with the definitions that it refers to."""
        schema = self.generate()
        if not isinstance(schema, dict) or not self._defs:
            return schema
        return {**schema, "$defs": self._defs}

    def _string(self, depth: int) -> Schema:
        low = self._rng.randrange(3)
        schema: dict[str, Any] = {"type": "string", "maxLength": low + self._rng.randrange(6)}
        if low:
            schema["minLength"] = low
        return schema

    def _patterned(self, depth: int) -> Schema:
        if self._rng.random() < 0.5:
            return {"type": "string", "format": self._rng.choice(FORMATS)}
        return {"type": "string", "pattern": self._rng.choice(PATTERNS)}

    def _integer(self, depth: int) -> Schema:
        low = self._rng.randrange(-150, 100)
        high = low + self._rng.randrange(12, 900)
        schema: dict[str, Any] = {"type": "integer"}
        schema["minimum" if self._rng.random() < 0.5 else "exclusiveMinimum"] = low
        schema["maximum" if self._rng.random() < 0.5 else "exclusiveMaximum"] = high
        if self._rng.random() < 0.4:
            schema["multipleOf"] = self._rng.choice((2, 3, 5))
        return schema

    def _constant(self, depth: int) -> Schema:
        return {"const": self._rng.choice(CONSTANTS)}

    def _enum(self, depth: int) -> Schema:
        return {"enum": self._rng.sample(CONSTANTS, self._rng.randrange(1, 5))}

    def _object(self, depth: int) -> Schema:
        names = self._rng.sample(("a", "b", "long name", "\u00e9", "x-y"), self._rng.randrange(4))
        schema: dict[str, Any] = {
            "type": "object", "properties": {name: self.generate(depth + 1) for name in names},
            "additionalProperties": False,
        }  # fmt: skip
        required = [name for name in names if self._rng.random() < 0.6]
        if required:
            schema["required"] = required
        return schema

    def _array(self, depth: int) -> Schema:
        low = self._rng.randrange(2)
        schema = {"type": "array", "items": self.generate(depth + 1), "maxItems": low + self._rng.randrange(3)}
        return {**schema, "minItems": low} if low else schema

    def _tuple(self, depth: int) -> Schema:
        parts = [self.generate(depth + 1) for _ in range(self._rng.randrange(1, 4))]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self.generate(depth + 1) for _ in range(self._rng.randrange(1, 4))]}

    def _one_of(self, depth: int) -> Schema:
        parts = [
            self._integer(depth),
            self._string(depth),
            self._tuple(depth + 1),
            {"type": "null"},
            {"type": "boolean"},
        ]
        return {"oneOf": self._rng.sample(parts, self._rng.randrange(1, 4))}

    def _all_of(self, depth: int) -> Schema:
        if self._rng.random() < 0.5:
            low = self._rng.randrange(-50, 50)
            return {"allOf": [{"type": "integer"}, {"minimum": low}, {"maximum": low + 40}]}
        return {"allOf": [{"type": "string", "maxLength": 6}, {"minLength": self._rng.randrange(1, 4)}]}

    def _ref(self, depth: int) -> Schema:
        if not self._defs or self._rng.random() < 0.6:
            name = f"part{len(self._defs)}"
            self._defs[name] = {}  # reserved before the schema is generated, and no schema refers to itself
            schema = self.generate(max(depth, 1) + 1)
            self._defs[name] = schema
            return {"$ref": f"#/$defs/{name}"}
        complete = [name for name, schema in self._defs.items() if schema]
        return {"$ref": f"#/$defs/{self._rng.choice(complete)}"} if complete else self._string(depth)


def keywords_of(schema: Schema) -> Counter[str]:
    """Count 1 for each keyword of a schema; "nested" is an object or array in another."""
    keywords: set[str] = set()

    def walk(value: Any, depth: int) -> None:
        if isinstance(value, dict):
            keywords.update(name for name in value if name in KEYWORDS)
            inner_depth = depth + (value.get("type") in ("object", "array"))
            if inner_depth > 1:
                keywords.add("nested")
            for name, part in value.items():
                if name in ("enum", "const"):
                    continue
                walk(part, inner_depth)
        elif isinstance(value, list):
            for part in value:
                walk(part, depth)

    walk(schema, 0)
    return Counter(keywords)


def schemas(count: int) -> list[Schema]:
    """Return `count` schemas, which are the same in every run."""
    return [SchemaGenerator(seed).generate_with_definitions() for seed in range(count)]
