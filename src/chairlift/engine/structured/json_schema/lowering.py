"""Lowering: rewrites a JSON Schema into one that uses only keywords that llguidance supports.

Each schema is lowered to one whose values all match it ("positive") or all fail to match it ("negative"). Both may lose
values, so `not` is sound in any nesting: a rule that needs the complement of a schema takes the negative, never the
complement of a positive. Referenced schemas become definitions that are named by number.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

from chairlift.engine.structured.json_schema import arrays, negation, objects, unevaluated
from chairlift.engine.structured.json_schema.all_of_and_any_of import all_of, any_of
from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.document import TYPES, Node, Schema, SchemaDocument, cost_of, is_nullable
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.exclusive_bounds import exclude_integers
from chairlift.engine.structured.json_schema.implied_types import INNER_KEYWORDS, ImpliedTypes
from chairlift.engine.structured.json_schema.one_of import one_of_conditions
from chairlift.engine.structured.json_schema.patterns import (
    KNOWN_FORMATS,
    OTHER_FORMATS,
    UNENFORCED_FORMATS,
    grammar_pattern,
)
from chairlift.engine.structured.json_schema.possible_types import PossibleTypes

MAX_MULTIPLE_DIGITS = 9
"""Most significant digits of a multipleOf."""

MAX_DEPTH = 80
"""Deepest nesting of rules, references included."""

DEFINITION = "#/$defs/"


def lower(schema: Schema, *, strict: bool, budget: LoweringBudget | None = None) -> tuple[Schema, tuple[str, ...]]:
    """Return a schema that llguidance supports, and the places of the keywords that it does not enforce.

    Each value of the result matches `schema`, apart from those places, which only strict=False allows. A place is the
    JSON pointer of a keyword, such as /properties/tags/uniqueItems. The schemas of one request share a `budget`.

    Raises:
        UnsupportedSchemaError: a keyword cannot be enforced and strict is true, or the schema needs another document.
        ValueError: the schema is malformed, matches no value or becomes too large.
    """
    if isinstance(schema, bool):
        if not schema:
            raise ValueError("no output matches the schema false")
        return True, ()
    lowering = Lowering(SchemaDocument(schema, budget or LoweringBudget()), strict=strict)
    lowered = lowering.lower_document()
    return lowered, tuple(dict.fromkeys(lowering.ignored))


class Lowering:
    """The state of one document's lowering.

    Attributes:
        document: the schema with its references.
        implied_types: the types of the schemas that say none.
        possible_types: the types of the values of all schemas.
        ignored: places of keywords that are not enforced.
        is_strict: whether a keyword that cannot be enforced raises UnsupportedSchemaError.
        is_exact: whether the schema is a condition, in which no keyword is relaxed.
    """

    def __init__(self, document: SchemaDocument, *, strict: bool) -> None:
        self.document = document
        self.ignored: list[str] = []
        self.is_strict = strict
        self.is_exact = False
        self.implied_types = ImpliedTypes(document)
        self.possible_types = PossibleTypes(document, self.implied_types)
        self._names: dict[tuple[str, bool, frozenset[str] | None], str] = {}
        self._definitions: dict[str, Schema] = {}
        self._pending: list[tuple[str, Node]] = []
        self._depth = 0
        self._impossible = ""

    def lower_document(self) -> Schema:
        """Lower the root and all schemas that it refers to. Raises ValueError."""
        root = self.positive(self.document.root)
        # Definitions may refer to further ones, and to themselves: they are lowered one by one, not within each other.
        while self._pending:
            name, node = self._pending.pop()
            self._definitions[name] = self.positive(node)
        if root is False:
            raise ValueError(f"no output matches the schema: {self._impossible or '/'} allows none")
        if root is True:
            return True
        return exclude_integers(
            {**root, "$defs": self._definitions} if self._definitions else root, self.document.budget
        )

    def positive(self, node: Node) -> Schema:
        """Return a supported schema whose values all match `node`."""
        if isinstance(node.schema, bool):
            return node.schema
        if is_nullable(node.schema):
            return any_of([self.positive(node.reduced("nullable")), {"type": "null"}])
        with self.entered(node):
            node = self.implied_types.add_to(node)
            if unevaluated.is_used(node):
                try:
                    return unevaluated.lower_unevaluated(self, node)
                except UnsupportedSchemaError:
                    if self.is_strict:
                        raise
                    self.ignored += [node.at(name) for name in unevaluated.KEYWORDS if name in node.schema]
            return self._conjunction(node)

    def negative(self, node: Node) -> Schema:
        """Return a supported schema whose values all fail to match `node`. Raises UnsupportedSchemaError."""
        if isinstance(node.schema, bool):
            return not node.schema
        if is_nullable(node.schema):
            return all_of(
                [self.negative(node.reduced("nullable")), {"type": [name for name in TYPES if name != "null"]}]
            )
        if node.value_types is not None:
            node = replace(node, inner_types=node.value_types, inner_keywords=INNER_KEYWORDS)
        with self._exactly(), self.entered(node):
            return negation.lower_negative(self, node)

    @contextmanager
    def entered(self, node: Node) -> Iterator[None]:
        """Count the work on a schema and its depth. Raises ValueError beyond the limits."""
        self.document.budget.spend(cost_of(node), node.pointer)
        if self._depth >= MAX_DEPTH:
            raise ValueError(f"{node.pointer or '/'} is nested deeper than {MAX_DEPTH} levels with its references")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def strictly(self, node: Node) -> Schema:
        """Return positive(node) with all of its keywords. Raises UnsupportedSchemaError."""
        with self._exactly():
            return self.positive(node)

    @contextmanager
    def _exactly(self) -> Iterator[None]:
        """Ignore no keyword meanwhile: a condition that is only partly kept is not one."""
        before = self.is_strict, self.is_exact
        self.is_strict = self.is_exact = True
        try:
            yield
        finally:
            self.is_strict, self.is_exact = before

    def reference(self, node: Node, keyword: str, *, negative: bool = False) -> Schema:
        """Return a reference to the definition of what `$ref` or `$dynamicRef` refers to."""
        target = self.document.resolve(node, keyword)
        if isinstance(target.schema, bool):
            return target.schema is not negative
        if "type" in target.schema:  # it needs no other
            target = target.limited(None)
        key = target.pointer, negative, target.value_types
        if key not in self._names:
            name = self._names[key] = str(len(self._names))
            if negative:
                try:
                    self._definitions[name] = self.negative(target)
                except UnsupportedSchemaError:
                    # A later reference must raise, too, and not refer to what could not be lowered.
                    del self._names[key]
                    self._names[f"{name} failed", True, None] = name  # no other definition gets this number
                    self._definitions[name] = False
                    raise
            else:
                self._pending.append((name, target))
        return {"$ref": DEFINITION + self._names[key]}

    def define(self, schema: Schema) -> Schema:
        """Return a reference to a lowered schema that is used several times."""
        if isinstance(schema, bool) or schema.keys() == {"$ref"}:
            return schema
        name = str(len(self._names))
        self._names[f"{name} defined", False, None] = name
        self._definitions[name] = schema
        return {"$ref": DEFINITION + name}

    def _conjunction(self, node: Node) -> Schema:
        parts: list[Schema] = []
        for keyword, rule in RULES.items():
            if not node.has(keyword):
                continue
            try:
                found = rule(self, node)
                if False in found:
                    self._impossible = node.at(keyword)
                parts += found
            except UnsupportedSchemaError:
                if self.is_strict:
                    raise
                self.ignored.append(node.at(keyword))
        return all_of(parts)


# -- rules of single keywords ------------------------------------------------------------------------------------------


def _keep(keyword: str) -> Callable[[Lowering, Node], list[Schema]]:
    return lambda _, node: [{keyword: node.schema[keyword]}]


def _count(keyword: str) -> Callable[[Lowering, Node], list[Schema]]:
    return lambda _, node: [{keyword: int(node.schema[keyword])}]


def _exclusive(keyword: str, bound: str) -> Callable[[Lowering, Node], list[Schema]]:
    def rule(lowering: Lowering, node: Node) -> list[Schema]:
        value = node.schema[keyword]
        if isinstance(value, bool):  # JSON Schema 4: whether the other bound is excluded
            return [{keyword: node.schema[bound]}] if value and bound in node.schema else []
        return [{keyword: value}]

    return rule


def _multiple_of(lowering: Lowering, node: Node) -> list[Schema]:
    digits = Decimal(repr(node.schema["multipleOf"])).normalize().as_tuple().digits
    if len(digits) > MAX_MULTIPLE_DIGITS:
        raise UnsupportedSchemaError(node.at("multipleOf"), f"has more than {MAX_MULTIPLE_DIGITS} digits, the limit")
    return [{"multipleOf": node.schema["multipleOf"]}]


def _pattern(lowering: Lowering, node: Node) -> list[Schema]:
    return [{"pattern": grammar_pattern(node.schema["pattern"], node.at("pattern"), lowering.document.budget)}]


def _format(lowering: Lowering, node: Node) -> list[Schema]:
    name = node.schema["format"]
    if name in KNOWN_FORMATS or "string" not in objects.allowed_types(node):
        return [{"format": name}]
    if name in OTHER_FORMATS:
        return [OTHER_FORMATS[name]]
    if name in UNENFORCED_FORMATS:
        raise UnsupportedSchemaError(node.at("format"), f"is not enforced: {name[:100]}")
    lowering.ignored.append(node.at("format"))
    return []


def _reference(keyword: str) -> Callable[[Lowering, Node], list[Schema]]:
    return lambda lowering, node: [lowering.reference(node, keyword)]


def _unsupported(keyword: str) -> Callable[[Lowering, Node], list[Schema]]:
    def rule(lowering: Lowering, node: Node) -> list[Schema]:
        raise UnsupportedSchemaError(node.at(keyword), "is not supported")

    return rule


def _all_of(lowering: Lowering, node: Node) -> list[Schema]:
    parts = [lowering.positive(node.child("allOf", index)) for index in range(len(node.schema["allOf"]))]
    return (
        [False]
        if False in parts
        else [{"allOf": kept}]
        if (kept := [part for part in parts if part is not True])
        else []
    )


def _any_of(lowering: Lowering, node: Node) -> list[Schema]:
    return [any_of(lowering.positive(node.child("anyOf", index)) for index in range(len(node.schema["anyOf"])))]


def _one_of(lowering: Lowering, node: Node) -> list[Schema]:
    parts = [lowering.positive(node.child("oneOf", index)) for index in range(len(node.schema["oneOf"]))]
    try:
        found = one_of_conditions(lowering, node)
    except UnsupportedSchemaError:
        if lowering.is_strict:
            raise
        lowering.ignored.append(node.at("oneOf"))
        return [any_of(parts)]
    each = [all_of([part, *others]) for part, others in zip(parts, found.by_part, strict=True)]
    return [any_of([*each, *found.others])]


def _not(lowering: Lowering, node: Node) -> list[Schema]:
    return [lowering.negative(node.child("not"))]


def _if(lowering: Lowering, node: Node) -> list[Schema]:
    then = lowering.positive(node.child("then")) if "then" in node.schema else True
    otherwise = lowering.positive(node.child("else")) if "else" in node.schema else True
    # Without either branch `if` has no effect, whatever its complement would need.
    if then is True and otherwise is True:
        return []
    condition = node.child("if")
    # Strictly: with a part of the condition left out, values would count as matching that do not.
    holds = all_of([lowering.strictly(condition), then]) if then is not False else False
    fails = all_of([lowering.negative(condition), otherwise]) if otherwise is not False else False
    return [any_of([holds, fails])]


RULES: dict[str, Callable[[Lowering, Node], list[Schema]]] = {
    **{keyword: _keep(keyword) for keyword in (
        "type", "enum", "const", "minimum", "maximum",
    )},
    "exclusiveMinimum": _exclusive("exclusiveMinimum", "minimum"), "multipleOf": _multiple_of,
    "exclusiveMaximum": _exclusive("exclusiveMaximum", "maximum"),
    **{keyword: _count(keyword) for keyword in ("minLength", "maxLength", "minItems", "maxItems")},
    "pattern": _pattern, "format": _format,
    **arrays.RULES, **objects.RULES,
    "$ref": _reference("$ref"), "$dynamicRef": _reference("$dynamicRef"),
    "$recursiveRef": _unsupported("$recursiveRef"),
    "allOf": _all_of, "anyOf": _any_of, "oneOf": _one_of, "not": _not, "if": _if,
}  # fmt: skip
"""Rules by keyword, in the order in which their results are put together. Other keywords are annotations."""
