"""SchemaDocument: checks the form of a JSON Schema and resolves the references inside it."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.value_keys import ValueKeys

Schema = Any
"""A JSON Schema as plain JSON: a dictionary, True or False."""

TYPES = ("null", "boolean", "number", "string", "array", "object")
"""Types of JSON values; an integer is a number."""

ALL_TYPES = frozenset(TYPES)

_SCHEMA = ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties", "additionalItems",
           "unevaluatedProperties", "unevaluatedItems", "items")  # fmt: skip
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas")
_DEFINITIONS = ("$defs", "definitions")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
           "maxContains")  # fmt: skip
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTS = ("$ref", "$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor", "pattern", "format")
APPLIES_TO = {
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minItems",
                     "maxItems", "uniqueItems", "unevaluatedItems"), "array"),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required", "minProperties",
                     "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
                     "unevaluatedProperties"), "object"),
}  # fmt: skip
"""The type of the values that a keyword limits; it has no effect on others."""

KEYWORDS = frozenset({
    *APPLIES_TO, "type", "enum", "const", "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not",
    "if", "then", "else", "nullable",
})  # fmt: skip
"""Keywords that limit values; all others are annotations. `nullable` is one of OpenAPI 3.0."""

_LITERALS = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose values are not schemas."""

VALUES_PER_COST = 8
"""Values of an enum that are as much work as one schema."""

USUAL_KEYWORDS = 32
"""Keywords of a schema, annotations among them, that are no work of their own."""

MAX_NAME_CHARS = 256
"""Longest name in a JSON pointer that is kept as it is, since the pointers of all schemas inside repeat it."""

MAX_URI_CHARS = 8192
"""Longest URI that references are relative to."""


@dataclass(frozen=True, slots=True)
class Node:
    """A schema within the document.

    Attributes:
        schema: the schema as plain JSON.
        pointer: its JSON pointer in the document.
        base: URI that its references are relative to.
        value_types: types that the value may have by other schemas that apply to it, too; None if none says a type.
        inner_types: `value_types` of the schemas that `inner_keywords` apply to the same value.
        inner_keywords: keywords whose schemas get `inner_types`, references among them.
    """

    schema: Schema
    pointer: str
    base: str
    value_types: frozenset[str] | None = None
    inner_types: frozenset[str] | None = None
    inner_keywords: frozenset[str] = frozenset()

    def child(self, *tokens: str | int) -> "Node":
        """Return the schema at a path below this one."""
        schema, pointer, base = self.schema, self.pointer, self.base
        for token in tokens:
            schema = schema[token]
            pointer += f"/{token}" if isinstance(token, int) else f"/{_pointer_token(token)}"
            if isinstance(schema, dict) and isinstance(schema.get("$id"), str):
                base = join_uri(base, schema["$id"].partition("#")[0])
                _check_uri(base, pointer)
        return Node(schema, pointer, base, self.inner_types if tokens[0] in self.inner_keywords else None)

    def limited(self, value_types: frozenset[str] | None) -> "Node":
        """Return the same schema with other `value_types`, and none of its own for those inside it."""
        if self.value_types == value_types and self.inner_types is None:
            return self
        return Node(self.schema, self.pointer, self.base, value_types)

    def reduced(self, *keywords: str) -> "Node":
        """Return the same schema without some of its keywords."""
        return replace(self, schema={name: value for name, value in self.schema.items() if name not in keywords})

    def has(self, keyword: str) -> bool:
        """Return whether the schema has a keyword, and its `type` allows values that the keyword limits."""
        return keyword in self.schema and applies(keyword, self.schema)

    def at(self, keyword: str) -> str:
        """Return the JSON pointer of a keyword."""
        return f"{self.pointer}/{keyword}"


class SchemaDocument:
    """A whole schema with an index of its identifiers and anchors.

    Attributes:
        root: the schema itself.
        budget: the work that is left for all schemas of the request.
        keys: the keys of its values.

    Raises ValueError if the schema is malformed or larger than the budget allows.
    """

    def __init__(self, schema: Schema, budget: LoweringBudget) -> None:
        schema = without_null_keywords(schema)
        base = schema.get("$id", "") if isinstance(schema, dict) else ""
        self.root = Node(schema, "", base.partition("#")[0] if isinstance(base, str) else "")
        _check_uri(self.root.base, "")
        self.budget = budget
        self.keys = ValueKeys()
        self._targets: dict[tuple[str, str, str], tuple[Node | None, int]] = {}
        self._resources = {"": self.root, self.root.base: self.root}
        self._anchors: dict[tuple[str, str], Node] = {}
        self._dynamic: dict[str, dict[str, Node]] = {}
        self._malformed: dict[str, ValueError] = {}
        self._visited: set[str] = set()
        self._visit(self.root)

    def _visit(self, root: Node) -> None:
        """Check and index a schema with those inside it. Raises ValueError for a malformed one."""
        pending = [(root, "")]
        while pending:
            node, definition = pending.pop()
            self._visited.add(node.pointer)
            self.budget.add_schemas(cost_of(node), node.pointer)
            try:
                _check_form(node)
            except ValueError as error:
                if not definition:
                    raise
                self._malformed[definition] = error  # it matters only if something refers to it
                continue
            if isinstance(node.schema, dict):
                self._index(node)
                pending += [(each, definition) for each in subschemas(node)]
                pending += [(each, each.pointer) for each in definitions(node)]

    def _index(self, node: Node) -> None:
        identifier = node.schema.get("$id")
        if isinstance(identifier, str) and not identifier.startswith("#"):
            self._resources[node.base] = node
        for name in ("$anchor", "$dynamicAnchor"):
            if name in node.schema:
                self._anchors[node.base, node.schema[name]] = node
        if isinstance(identifier, str) and "#" in identifier:  # an anchor of JSON Schema 7
            self._anchors[node.base, identifier.partition("#")[2]] = node
        if "$dynamicAnchor" in node.schema:
            self._dynamic.setdefault(node.schema["$dynamicAnchor"], {})[node.base] = node

    def resolve(self, node: Node, keyword: str, *, cost: int = 1) -> Node:
        """Return the schema that `$ref` or `$dynamicRef` refers to. Raises ValueError.

        A caller that counts the work of a search or of a comparison itself has no other `cost`.
        """
        place = keyword, node.base, node.schema[keyword]
        target, num_malformed = self._targets.get(place, (None, -1))
        if target is None:
            target = self._target(node, keyword)
        self.budget.spend(cost, node.at(keyword))
        # A definition that nothing refers to may be malformed: the schema is still valid to use.
        if len(self._malformed) != num_malformed:
            self._check_is_sound(target.pointer)
            self._targets[place] = target, len(self._malformed)
        return target.limited(node.inner_types if keyword in node.inner_keywords else None)

    def _check_is_sound(self, pointer: str) -> None:
        tokens = pointer.split("/") if self._malformed else []
        for length in range(len(tokens), 0, -1):
            if (error := self._malformed.get("/".join(tokens[:length]))) is not None:
                raise error

    def _target(self, node: Node, keyword: str) -> Node:
        reference = node.schema[keyword]
        uri, _, fragment = join_uri(node.base, reference).partition("#")
        resource = self._resources.get(uri)
        if resource is None:
            raise UnsupportedSchemaError(node.at(keyword), f"refers to another document: {reference[:200]}")
        fragment = _unquote(fragment)
        if not fragment or fragment.startswith("/"):
            return self._at_pointer(resource, fragment, node.at(keyword))
        target = self._anchors.get((uri, fragment))
        if target is None:
            raise ValueError(f"{node.at(keyword)} refers to nothing: {reference[:200]}")
        if keyword == "$dynamicRef" and target.schema.get("$dynamicAnchor") == fragment:
            candidates = self._dynamic[fragment]
            if self.root.base in candidates:  # the outermost resource, wherever the reference is followed
                return candidates[self.root.base]
            if len(candidates) > 1:
                raise UnsupportedSchemaError(node.at(keyword), "depends on the path to it")
        return target

    def _at_pointer(self, resource: Node, pointer: str, place: str) -> Node:
        node = resource
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            value = node.schema
            if isinstance(value, dict) and name in value:
                node = node.child(name)
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                node = node.child(int(name))
            else:
                raise ValueError(f"{place} refers to nothing: {pointer[:200]}")
        if not isinstance(node.schema, dict | bool):
            raise ValueError(f"{place} does not refer to a schema")
        if node.pointer not in self._visited:  # behind an unknown keyword, or one that has no effect
            self._visit(node)
        return node


def without_null_keywords(schema: Schema) -> Schema:
    """Return a schema without keywords whose value is null, as programs write lists and schemas that they leave out."""
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _LITERALS and (value is not None or keyword != "enum"):
            found[keyword] = value
        elif keyword in (*_SCHEMA_MAPS, *_DEFINITIONS) and isinstance(value, dict):
            found[keyword] = {name: without_null_keywords(part) for name, part in value.items()}
        elif keyword == "type" and isinstance(value, list) and all(isinstance(name, str) for name in value):
            found[keyword] = list(dict.fromkeys(value))
        elif isinstance(value, list):
            found[keyword] = [without_null_keywords(part) for part in value]
        elif value is not None:
            found[keyword] = without_null_keywords(value)
    return found


def is_nullable(schema: Schema) -> bool:
    """Return whether a schema allows null by `nullable`, beside what its other keywords allow."""
    return isinstance(schema, dict) and schema.get("nullable") is True


def cost_of(node: Node) -> int:
    """Return how much work one schema is, without those inside it."""
    if not isinstance(node.schema, dict):
        return 1
    lists = (node.schema.get("enum"), node.schema.get("required"))
    num_values = sum(len(values) for values in lists if isinstance(values, list))
    return 1 + (num_values + max(0, len(node.schema) - USUAL_KEYWORDS)) // VALUES_PER_COST


def _pointer_token(name: str) -> str:
    """Return a name as the token of a JSON pointer, a long one with a digest in place of its end."""
    if len(name) > MAX_NAME_CHARS:
        name = f"{name[:MAX_NAME_CHARS]}...{blake2b(name.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
    return name.replace("~", "~0").replace("/", "~1")


def _check_uri(uri: str, pointer: str) -> None:
    if len(uri) > MAX_URI_CHARS:
        raise ValueError(f"{pointer}/$id has more than {MAX_URI_CHARS} characters, the limit")


def subschemas(node: Node) -> Iterator[Node]:
    """Yield the schemas directly inside a schema."""
    for keyword in node.schema:
        yield from (node.child(*path) for path in schemas_of(node, keyword))


def schemas_of(node: Node, keyword: str) -> list[tuple[str | int, ...]]:
    """Return the paths to the schemas directly inside a keyword."""
    value = node.schema[keyword]
    if not applies(keyword, node.schema):
        return []
    if keyword in _SCHEMA and not (keyword == "items" and isinstance(value, list)):
        return [(keyword,)]
    if keyword in _SCHEMA_LISTS or keyword == "items":
        return [(keyword, index) for index in range(len(value))]
    if keyword in _SCHEMA_MAPS:
        return [(keyword, name) for name in value]
    if keyword == "dependencies":
        return [(keyword, name) for name, part in value.items() if not isinstance(part, list)]
    return []


def definitions(node: Node) -> Iterator[Node]:
    """Yield the schemas that a schema defines for references."""
    for keyword in _DEFINITIONS:
        if isinstance(node.schema.get(keyword), dict):
            yield from (node.child(keyword, name) for name in node.schema[keyword])


def applies(keyword: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a keyword can have an effect on the types that a schema allows."""
    kind = APPLIES_TO.get(keyword)
    names = type_names(schema)
    return kind is None or kind in names or (kind == "number" and "integer" in names)


def _check_form(node: Node) -> None:
    """Raise ValueError for a keyword whose value has the wrong type."""
    if isinstance(node.schema, bool):
        return
    if not isinstance(node.schema, dict):
        raise ValueError(f"{node.pointer or '/'} must be a schema, got {type(node.schema).__name__}")
    if "type" in node.schema:
        _check_type(node, node.schema["type"])
    for keyword, value in node.schema.items():
        expected = ""
        if not applies(keyword, node.schema):
            continue
        if keyword in _COUNTS:
            expected = "" if _is_number(value) and value >= 0 and value == int(value) else "a count"
        elif keyword in _NUMBERS:
            is_old = keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool)
            expected = "" if _is_number(value) or is_old else "a number"
        elif keyword in _TEXTS:
            expected = "" if isinstance(value, str) else "a string"
        elif keyword in _SCHEMA_LISTS or keyword == "enum":
            expected = "" if isinstance(value, list) else "a list"
        elif keyword in _SCHEMA_MAPS or keyword in ("dependencies", "dependentRequired"):
            expected = "" if isinstance(value, dict) else "an object"
            if keyword == "dependentRequired" and not expected and not all(map(_is_text_list, value.values())):
                expected = "an object of lists of strings"
        elif keyword == "required":
            expected = "" if _is_text_list(value) else "a list of strings"
        elif keyword == "uniqueItems":
            expected = "" if isinstance(value, bool) else "true or false"
        if expected:
            raise ValueError(f"{node.at(keyword)} must be {expected}, got {str(value)[:60]}")


def _check_type(node: Node, value: Any) -> None:
    for name in value if isinstance(value, list) else [value]:
        if name not in (*TYPES, "integer"):
            raise ValueError(f"{node.at('type')} is not a type of JSON values: {str(name)[:60]}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def join_uri(base: str, reference: str) -> str:
    """Resolve a URI reference against a base URI, as RFC 3986 (5.2) says."""
    scheme = reference.partition(":")[0]
    if ":" in reference and scheme.isascii() and scheme[:1].isalpha() and not set(scheme) & set("/?#"):
        return reference
    base = base.partition("#")[0]
    if not reference or reference.startswith("#"):
        return base + reference
    base = base.partition("?")[0]
    scheme, colon, rest = base.partition(":") if ":" in base.partition("/")[0] else ("", "", base)
    if reference.startswith("//"):
        return scheme + colon + reference
    authority = ""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        authority, rest = f"//{host}", slash + path
    end = next((index for index, char in enumerate(reference) if char in "?#"), len(reference))
    path, suffix = reference[:end], reference[end:]
    if not path.startswith("/"):
        path = f"{rest.rpartition('/')[0]}/{path}" if "/" in rest or authority else path
    return f"{scheme}{colon}{authority}{_without_dots(path)}{suffix}"


def _without_dots(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    if path.endswith(("/.", "/..")):
        parts.append("")
    return "/".join(parts)


def _unquote(text: str) -> str:
    """Decode the percent-encoded bytes of a fragment."""
    if "%" not in text:
        return text
    head, *parts = text.split("%")
    decoded = bytearray(head.encode())
    for part in parts:
        try:
            decoded += bytes.fromhex(part[:2]) + part[2:].encode()
        except ValueError:
            decoded += f"%{part}".encode()
    return decoded.decode(errors="replace")


def type_names(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema's `type` allows; all of them without it."""
    names = schema.get("type", list(TYPES))
    return list(names) if isinstance(names, list) else [names]


def types_in_common(some: Set[str], others: Set[str]) -> frozenset[str]:
    """Return the types of the values that have one of the types of both sets; integers are numbers."""
    found = {name for name in some if name in others or (name == "integer" and "number" in others)}
    return frozenset(found | {name for name in others if name == "integer" and "number" in some})
