"""Structured output cost: two batches that differ only in schemas alternate, and no output ends early."""

import json

import pytest
from jsonschema.validators import validator_for

from chairlift.llm.build import prepare
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.options import Options
from structured_cost.structured_batch_comparison import measure, schema
from support_grammars import EOS, allowed_tokens, grammar_of, random_pick

SMALL: Options = {"num_blocks": 300, "max_running_requests": 8}


@pytest.mark.full
def test_both_batches_run_completely_in_each_round() -> None:
    messages: list[str] = []
    found = measure(prepare(RANDOM, SMALL), requests=6, output_tokens=40, repeat=3, seed=1, note=messages.append)
    assert len(found["plain"]) == len(found["structured"]) == len(found["by_turn"]) == 3
    for each in (*found["plain"], *found["structured"]):
        assert each["requests"] == {"total": 6, "completed": 6, "failed": 0, "errors": {}}
    assert found["ratio"] == sorted(found["by_turn"])[1] and found["integrity_errors"] == []
    order = [line.split()[4] for line in messages]
    assert order == ["plain", "structured", "structured", "plain", "plain", "structured"]


def test_no_output_under_a_schema_ends_before_its_length() -> None:
    grammar, pick = grammar_of(json_schema=schema(3)), random_pick(5)
    for _ in range(2000):
        choices = allowed_tokens(grammar)
        assert EOS not in choices
        grammar.advance(pick(sorted(choices)))
    assert not grammar.is_terminated


def test_the_schemas_say_something() -> None:
    record = {"name 3": "a", "age": 9, "mail": "ab@cd.org", "kind": None, "tags": ["x"]}
    item = schema(3)["items"]
    assert validator_for(item)(item).is_valid(json.loads(json.dumps(record)))
    for name, wrong in (("age", 151), ("mail", "ab"), ("kind", "else"), ("tags", [])):
        assert not validator_for(item)(item).is_valid({**record, name: wrong})
    assert schema(3) != schema(4)
