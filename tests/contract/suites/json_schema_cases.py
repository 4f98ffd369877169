"""Cases of the JSON Schema Test Suite 2020-12: outputs of the accepted schemas match, and few schemas are rejected.

CHAIRLIFT_SUITE_FOLDER is the unpacked source distribution of jsonschema, which contains the suite.
"""

import itertools
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema_specifications import REGISTRY
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from support_grammars import grammar_of
from support_json_schema import accepts, random_output

FOLDER = Path(os.environ["CHAIRLIFT_SUITE_FOLDER"]) / "json"
REMOTES = "http://localhost:1234/"
NUM_SCHEMAS, NUM_REJECTED = 368, 48
"""All schemas of the suite, and those that no grammar enforces (strict): most of them refer to other documents.

Three match only values of types that their keywords are not about, such as contains: false.
"""

OUTPUTS_PER_SCHEMA = 12
MAX_ORDERED_PROPERTIES = 5


def groups() -> Iterator[Any]:
    """Yield a pytest parameter for each schema of the suite."""
    for path in sorted((FOLDER / "tests").glob("*2020-12/*.json")):
        for number, group in enumerate(json.loads(path.read_text(encoding="utf-8"))):
            yield pytest.param(group["schema"], group["tests"], id=f"{path.stem}-{number}")


GROUPS = list(groups())


@cache
def registry() -> "Registry[Any]":
    """Return the documents that the schemas refer to."""
    found: Registry[Any] = Registry()
    for path in (FOLDER / "remotes").rglob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        resource = Resource.from_contents(document, default_specification=DRAFT202012)
        found = found.with_resource(REMOTES + path.relative_to(FOLDER / "remotes").as_posix(), resource)
    return REGISTRY.combine(found)


def grammar_or_none(schema: Any) -> GrammarMatcher | None:
    """Compile a schema. Returns None if it is rejected."""
    try:
        return grammar_of(json_schema=schema)
    except (ValueError, AssertionError):
        return None


def in_every_order(value: Any) -> Iterator[Any]:
    """Yield a value, an object with its properties in every order: a grammar has those of the schema."""
    if isinstance(value, dict) and 1 < len(value) <= MAX_ORDERED_PROPERTIES:
        yield from map(dict, itertools.permutations(value.items()))
    else:
        yield value


def is_exactly_valid(schema: Any, value: Any) -> bool:
    """Return whether a value matches in decimal arithmetic: 49.732 / 0.0001 is no integer in binary."""
    exact_schema, exact_value = (json.loads(json.dumps(each), parse_float=Decimal) for each in (schema, value))
    return bool(Draft202012Validator(exact_schema, registry=registry()).is_valid(exact_value))


@pytest.mark.parametrize(("schema", "tests"), GROUPS)
def test_outputs_match_and_invalid_values_are_impossible(schema: Any, tests: list[Any]) -> None:
    if (grammar := grammar_or_none(schema)) is None:
        return
    validator = Draft202012Validator(schema, registry=registry())
    for seed in range(OUTPUTS_PER_SCHEMA):
        value = random_output(grammar, seed)
        assert value is None or validator.is_valid(value) or is_exactly_valid(schema, value), value
    invalid = [test["data"] for test in tests if not test["valid"]]
    assert [value for value in invalid if any(accepts(grammar, each) for each in in_every_order(value))] == []


def test_few_schemas_are_rejected() -> None:
    rejected = [group.id for group in GROUPS if grammar_or_none(group.values[0]) is None]
    assert (len(GROUPS), len(rejected)) == (NUM_SCHEMAS, NUM_REJECTED), rejected
