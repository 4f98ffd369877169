"""Structured output parses and validates with any weights, and every valid instance can be generated.

500 schemas over the keywords of JSON Schema (each in at least 40 of them), regular expressions and choices; greedy and
sampled, streamed, preempted, overlapped, in batches of 32, by a model of random weights.
"""

import asyncio
import json
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
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.outputs import RequestOutput
from support_grammars import EOS, allowed_tokens, generate_output, grammar_of, random_pick
from support_schemas import KEYWORDS, keywords_of, schemas
from support_shares import FULL

NUM_SCHEMAS = 500
NUM_TESTED = NUM_SCHEMAS if FULL else 16
MIN_PER_KEYWORD = 40
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


@pytest.mark.full
def test_each_keyword_is_in_many_of_the_schemas() -> None:
    counts: Counter[str] = sum((keywords_of(schema) for schema in schemas(NUM_SCHEMAS)), Counter())
    assert {name: counts[name] for name in KEYWORDS if counts[name] < MIN_PER_KEYWORD} == {}
    assert all(JsonSchemaValidator.check_schema(schema) is None for schema in schemas(NUM_SCHEMAS))


def check(schema: Any, result: RequestOutput) -> None:
    for choice in result.outputs:
        assert result.error is None, (schema, result.error)
        assert choice.finish_reason == "stop", (schema, choice.text)
        jsonschema.validate(json.loads(choice.text), schema, JsonSchemaValidator, format_checker=CHECKER)


def params(number: int, schema: Any, **more: Any) -> SamplingParams:
    defaults: dict[str, Any] = {"temperature": (0.0, 1.0, 1.7)[number % 3], "seed": number, "max_tokens": 900}
    return SamplingParams(structured=StructuredOutput(json_schema=schema), **{**defaults, **more})


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": True}, TIGHT, {**TIGHT, "overlap": True}, {"max_batch_tokens": 40}],
)  # fmt: skip
def test_outputs_validate_in_batches(options: dict[str, Any]) -> None:
    tested, is_tight = schemas(NUM_SCHEMAS)[:: NUM_SCHEMAS // NUM_TESTED][:NUM_TESTED], "block_size" in options
    with LLM(RANDOM, **{**OPTIONS, **options}) as llm:
        for start in range(0, len(tested), BATCH):
            batch = tested[start : start + BATCH]
            params_list = [
                params(start + at, schema, n=4 if is_tight else 1 + at % 2) for at, schema in enumerate(batch)
            ]
            for schema, result in zip(
                batch, llm.generate(["{"] * len(batch), params_list, use_tqdm=False), strict=True
            ):
                check(schema, result)
        assert llm.check_integrity() == []
        assert (llm.load().preemptions > 0) == is_tight


def test_outputs_validate_as_they_stream() -> None:
    async def run() -> None:
        async with AsyncLLM(RANDOM, **OPTIONS) as llm:

            async def stream_one(number: int, schema: Any) -> str:
                text = ""
                async with aclosing(llm.generate("x", params(number, schema))) as events:
                    async for event in events:
                        text += event.delta
                        assert event.error is None, (schema, event.error)
                return text

            number = BATCH if FULL else BATCH // 2
            batch = schemas(NUM_SCHEMAS)[5 : 5 + number]
            for schema, text in zip(batch, await asyncio.gather(*map(stream_one, range(number), batch)), strict=True):
                jsonschema.validate(json.loads(text), schema, JsonSchemaValidator, format_checker=CHECKER)

    asyncio.run(run())


@pytest.mark.full
def test_regexes_and_choices_hold_too() -> None:
    choices = [["a", "ab", "abc"], ["\u00e4", "x y", '"'], ["only"], [str(number) for number in range(50)]]
    structures = [StructuredOutput(regex=regex) for regex in REGEXES] + [
        StructuredOutput(choice=batch) for batch in choices
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
    converted = {name: part if name in ("enum", "const") else as_json_schema_7(part) for name, part in schema.items()}
    if "prefixItems" in converted:
        converted["additionalItems"] = converted.pop("items")
        converted["items"] = converted.pop("prefixItems")
    return converted


@cache
def instances(number: int) -> tuple[Any, ...]:
    """Return random valid instances of a schema."""
    from hypothesis_jsonschema import from_schema

    schema, values = schemas(NUM_SCHEMAS)[number], []

    @settings(max_examples=20 if FULL else 10, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(from_schema(as_json_schema_7(schema), custom_formats={"uuid": uuids().map(str)}))
    def draw(value: Any) -> None:
        values.append(value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw()
    return tuple(values)


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
    properties = schema.get("properties", {})
    return {name: in_order(value[name], part, root) for name, part in properties.items() if name in value} or value


def test_times_are_those_of_rfc_3339() -> None:
    """Seconds may have any number of digits, so no schema of the other tests has this format."""
    grammar = grammar_of(json_schema={"type": "string", "format": "time"})
    for seed in range(40):
        assert TIME.fullmatch(json.loads(generate_output(grammar.copy(), random_pick(seed))))


def validator(schema: Any) -> Any:
    return JsonSchemaValidator(schema, format_checker=CHECKER)


@pytest.mark.share(3)
@pytest.mark.parametrize("number", range(0, NUM_SCHEMAS, 1 if FULL else 15))
def test_every_valid_instance_can_be_written(number: int) -> None:
    schema = schemas(NUM_SCHEMAS)[number]
    template, rng = grammar_of(json_schema=schema), random.Random(number)
    valid = [instance for instance in instances(number) if validator(schema).is_valid(instance)]
    assert valid
    for instance in valid:
        value, separators = in_order(instance, schema, schema), rng.choice([(", ", ": "), (",", ":")])
        assert validator(schema).is_valid(value)
        text = json.dumps(value, ensure_ascii=False, separators=separators, indent=rng.choice([None, 1]))
        text = text.replace("\x7f", "\\u007f")  # control characters are escaped, all others are not
        grammar = template.copy()
        for token in text.encode():
            assert token in allowed_tokens(grammar), text
            grammar.advance(token)
        assert grammar.is_terminated or EOS in allowed_tokens(grammar), text
