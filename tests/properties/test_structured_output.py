"""Structured output parses and validates with any weights, and every valid instance can be generated.

500 schemas over the keywords of JSON Schema (each in at least 40 of them), regular expressions and choices; greedy and
sampled, streamed, preempted, overlapped, in batches of 32, by a model of random weights.
"""

import asyncio
import json
import os
import random
import re
import warnings
from collections import Counter
from contextlib import aclosing
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import uuids

from chairlift import LLM, AsyncLLM, SamplingParams, StructuredOutput
from chairlift.llm.model_names import RANDOM
from chairlift.llm.outputs import RequestOutput
from support_schemas import KEYWORDS, keywords_of, schemas
from support_structure import EOS, allowed, at_random, grammar_of, written

FULL = os.environ.get("CHAIRLIFT_FULL") == "1"
COUNT = 500
SHARE = COUNT if FULL else 96
EACH = 40
BATCH = 32
TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII | re.I)
OPTIONS: dict[str, Any] = {"num_blocks": 700, "max_running_requests": BATCH, "seed": 3}
TIGHT: dict[str, Any] = {"num_blocks": 240, "block_size": 4, "max_running_requests": 96}
CHECKER = jsonschema.FormatChecker(("date", "uuid", "ipv4", "ipv6"))
JsonSchemaValidator: Any = jsonschema.validators.validator_for(
    {"$schema": "https://json-schema.org/draft/2020-12/schema"}
)
REGEXES = (
    "[0-9]{1,4}",
    r"\d{2}:\d{2}(am|pm)?",
    "(yes|no)( (yes|no)){0,3}",
    "[a-zA-Z_][a-z0-9_]{0,12}",
    "a?b?c?d",
    "é{1,9}x{2}",
)


def test_each_keyword_is_in_many_of_the_schemas() -> None:
    counts: Counter[str] = sum((keywords_of(schema) for schema in schemas(COUNT)), Counter())
    assert {name: counts[name] for name in KEYWORDS if counts[name] < EACH} == {}
    assert all(JsonSchemaValidator.check_schema(schema) is None for schema in schemas(COUNT))


def check(schema: Any, result: RequestOutput) -> None:
    for choice in result.outputs:
        assert result.error is None, (schema, result.error)
        assert choice.finish_reason == "stop", (schema, choice.text)
        jsonschema.validate(json.loads(choice.text), schema, JsonSchemaValidator, format_checker=CHECKER)


def params(number: int, schema: Any, **more: Any) -> SamplingParams:
    chosen: dict[str, Any] = {"temperature": (0.0, 1.0, 1.7)[number % 3], "seed": number, "max_tokens": 900}
    return SamplingParams(structured=StructuredOutput(json_schema=schema), **{**chosen, **more})


@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": True}, TIGHT, {**TIGHT, "overlap": True}, {"max_batch_tokens": 40}],
)  # fmt: skip
def test_outputs_validate_in_batches(options: dict[str, Any]) -> None:
    share, is_tight = schemas(COUNT)[:: COUNT // SHARE][:SHARE], "block_size" in options
    with LLM(RANDOM, **{**OPTIONS, **options}) as llm:
        for start in range(0, len(share), BATCH):
            some = share[start : start + BATCH]
            params_list = [
                params(start + at, schema, n=4 if is_tight else 1 + at % 2) for at, schema in enumerate(some)
            ]
            for schema, result in zip(some, llm.generate(["{"] * len(some), params_list, use_tqdm=False), strict=True):
                check(schema, result)
        assert llm.check_integrity() == []
        assert (llm.load().preemptions > 0) == is_tight


def test_outputs_validate_as_they_stream() -> None:
    async def run() -> None:
        async with AsyncLLM(RANDOM, **OPTIONS) as llm:

            async def one(number: int, schema: Any) -> str:
                text = ""
                async with aclosing(llm.generate("x", params(number, schema))) as events:
                    async for event in events:
                        text += event.delta
                        assert event.error is None, (schema, event.error)
                return text

            some = schemas(COUNT)[5 : 5 + BATCH]
            for schema, text in zip(some, await asyncio.gather(*map(one, range(BATCH), some)), strict=True):
                jsonschema.validate(json.loads(text), schema, JsonSchemaValidator, format_checker=CHECKER)

    asyncio.run(run())


def test_regexes_and_choices_hold_too() -> None:
    choices = [["a", "ab", "abc"], ["\u00e4", "x y", '"'], ["only"], [str(number) for number in range(50)]]
    structures = [StructuredOutput(regex=regex) for regex in REGEXES] + [
        StructuredOutput(choice=some) for some in choices
    ]
    params_list = [
        SamplingParams(
            structured=structures[number % len(structures)], temperature=number % 2, seed=number, max_tokens=99
        )
        for number in range(64)
    ]
    with LLM(RANDOM, **OPTIONS, overlap=True) as llm:
        results = llm.generate(["?"] * len(params_list), params_list, use_tqdm=False)
    for number, result in enumerate(results):
        structured, text = structures[number % len(structures)], result.outputs[0].text
        assert result.error is None
        if structured.choice:
            assert text in structured.choice
        else:
            assert result.outputs[0].finish_reason == "stop"
            assert re.fullmatch(str(structured.regex), text, re.ASCII)


def as_json_schema_7(schema: Any) -> Any:
    """Return the schema in the older form that hypothesis-jsonschema reads, without prefixItems."""
    if isinstance(schema, list):
        return [as_json_schema_7(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: part if name in ("enum", "const") else as_json_schema_7(part) for name, part in schema.items()}
    if "prefixItems" in made:
        made["additionalItems"] = made.pop("items")
        made["items"] = made.pop("prefixItems")
    return made


@cache
def instances(number: int) -> tuple[Any, ...]:
    """Return random valid instances of a schema."""
    from hypothesis_jsonschema import from_schema

    schema, instances_found = schemas(COUNT)[number], []

    @settings(max_examples=20, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(from_schema(as_json_schema_7(schema), custom_formats={"uuid": uuids().map(str)}))
    def draw(value: Any) -> None:
        instances_found.append(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    return tuple(instances_found)


def in_order(value: Any, schema: Any, root: Any) -> Any:
    """Return the value with the properties of its objects in the order of the schema, as the grammar requires."""
    if not isinstance(schema, dict) or not isinstance(value, dict | list):
        return value
    if "$ref" in schema:
        return in_order(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if validator({**part, "$defs": root.get("$defs", {})}).is_valid(value):
            return in_order(value, part, root)
    if isinstance(value, list):
        parts = schema.get("prefixItems", [schema.get("items")] * len(value))
        return [in_order(each, part, root) for each, part in zip(value, parts, strict=False)]
    known = schema.get("properties", {})
    return {name: in_order(value[name], part, root) for name, part in known.items() if name in value} or value


def test_times_are_those_of_rfc_3339() -> None:
    """The digits of a second are unlimited, so there is no longest time, and the schemas have none."""
    grammar = grammar_of(json_schema={"type": "string", "format": "time"})
    for seed in range(40):
        assert TIME.fullmatch(json.loads(written(grammar.copy(), at_random(seed))))


def validator(schema: Any) -> Any:
    return JsonSchemaValidator(schema, format_checker=CHECKER)


@pytest.mark.parametrize("number", range(0, COUNT, 1 if FULL else 5))
def test_every_valid_instance_can_be_written(number: int) -> None:
    schema = schemas(COUNT)[number]
    template, rng = grammar_of(json_schema=schema), random.Random(number)
    valid = [drawn for drawn in instances(number) if validator(schema).is_valid(drawn)]
    assert valid
    for drawn in valid:
        value, separators = in_order(drawn, schema, schema), rng.choice([(", ", ": "), (",", ":")])
        assert validator(schema).is_valid(value)
        text = json.dumps(value, ensure_ascii=False, separators=separators, indent=rng.choice([None, 1]))
        text = text.replace("\x7f", "\\u007f")  # control characters are escaped, all others are not
        grammar = template.copy()
        for token in text.encode():
            assert token in allowed(grammar), text
            grammar.advance(token)
        assert grammar.is_terminated or EOS in allowed(grammar), text
