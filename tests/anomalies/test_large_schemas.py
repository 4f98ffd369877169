"""Large JSON Schemas are followed or rejected with 400; a limit that a later token exceeds ends only that request."""

import asyncio
import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chairlift import LLM, SamplingParams, StructuredOutput
from chairlift.core.errors import InvalidRequest, StructuredOutputTooComplex
from chairlift.llm.build import build_service
from chairlift.llm.builtin_models import RANDOM
from support_server import COMPLETIONS, MODEL, events, open_server

PATTERNS = ("^[a-z]{1,500}$", "(a|b)*c{0,300}", "^(\\w+\\s?){1,80}$", ".*x.{50}$")
LATE = {"type": "integer", "minimum": 0, "maximum": 1_000_000, "multipleOf": 9973}
"""Compiles, as 0 is a multiple, and exceeds the number of the library's expressions behind any other digit."""

NEIGHBOURS = ["one", "another", "a third"]


def large_schema(rng: random.Random, depth: int = 0) -> Any:
    """Return a random schema, often of hundreds of properties, values or alternatives, or of costly patterns."""
    count = rng.choice([1, 3, 10, 60, 300, 2000] if depth == 0 else [1, 2, 5, 20])
    kind = rng.choice(["string", "number", "enum", "format", *["object", "array", "anyOf"] * (depth < 3)])
    if kind == "string":
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == "number":
        return {"type": "integer", "maximum": 10 ** rng.randrange(9), "multipleOf": rng.choice([3, 7919])}
    if kind == "enum":
        return {"enum": [rng.choice([number, f"v{number}", [number], {"a": number}]) for number in range(count * 5)]}
    if kind == "format":
        return {"type": "string", "format": rng.choice(["date-time", "email", "ipv6", "uuid"])}
    if kind == "array":
        return {"type": "array", "items": large_schema(rng, depth + 1), "minItems": 5 * rng.randrange(9)}
    if kind == "anyOf":
        return {"anyOf": [large_schema(rng, depth + 1) for _ in range(rng.choice([2, 6, 30]))]}
    parts = {
        f"p{number}": large_schema(rng, depth + 1) if count <= 60 else {"type": "string"} for number in range(count)
    }
    required = [name for name in parts if rng.random() < rng.choice([0, 0.1, 0.9])]
    return {"type": "object", "properties": parts, "required": required, "additionalProperties": rng.random() < 0.5}


def params_of(schema: Any, seed: int) -> SamplingParams:
    temperature = (0.0, 1.0)[seed % 2]
    structured = StructuredOutput(json_schema=schema)
    return SamplingParams(max_tokens=60, seed=seed, temperature=temperature, structured=structured)


@pytest.mark.full
def test_random_large_schemas_are_followed_or_the_fault_of_their_request() -> None:
    plain = SamplingParams(seed=5, max_tokens=60, ignore_eos=True)
    schemas = [large_schema(random.Random(seed)) for seed in range(36)]
    with LLM(RANDOM, num_blocks=1000) as llm:
        expected = [result.outputs[0].token_ids for result in llm.generate(NEIGHBOURS, plain, use_tqdm=False)]
        params = [*(params_of(schema, seed) for seed, schema in enumerate(schemas)), *[plain] * 3]
        results = llm.generate([*["{"] * len(schemas), *NEIGHBOURS], params, use_tqdm=False)
        assert [result.outputs[0].token_ids for result in results[-3:]] == expected
        assert llm.check_integrity() == []
    complete = 0
    for schema, result in zip(schemas, results, strict=False):
        assert result.error is None or isinstance(result.error, InvalidRequest | StructuredOutputTooComplex)
        assert result.error is None or len(result.error.message) < 400, result.error
        if result.error is None and result.outputs[0].finish_reason == "stop":
            complete += 1
            Draft202012Validator(schema).validate(json.loads(result.outputs[0].text))
    assert complete > 10


@pytest.mark.full
def test_two_thousand_optional_properties_are_followed_or_named_as_too_large() -> None:
    """The compilation takes 0.3 s, and may exceed its 0.8 s on a busy machine."""
    properties = {f"property_{number}": {"type": "string"} for number in range(2000)}
    params = [params_of({"type": "object", "properties": properties}, seed) for seed in range(4)]
    with LLM(RANDOM, num_blocks=1000) as llm:
        for result in llm.generate(["{"] * 4, params, use_tqdm=False):
            if isinstance(result.error, InvalidRequest):
                assert (
                    "takes more than 0.8 s of processor time; its largest part is /properties with 2000"
                    in result.error.message
                )
            else:
                assert result.error is None


@pytest.mark.share(1)
@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_that_a_later_token_exceeds_ends_that_request_alone(stream: bool) -> None:
    """The grammar of LATE compiles; its second token exceeds the limit."""
    limited = {
        "model": MODEL, "prompt": "x", "guided_json": LATE, "max_tokens": 20, "temperature": 0, "stream": stream,
        "logit_bias": {str(ord("9")): 100},
    }  # fmt: skip
    good = {"model": MODEL, "prompt": "y", "max_tokens": 30, "temperature": 0, "ignore_eos": True}

    async def scenario() -> tuple[Any, Any, Any]:
        async with open_server(build_service(RANDOM, {})) as server:
            before = (await server.http.post(COMPLETIONS, json=good)).json()
            failed, neighbour = await asyncio.gather(
                server.http.post(COMPLETIONS, json=limited), server.http.post(COMPLETIONS, json=good)
            )
            return before, failed, neighbour.json()

    before, failed, neighbour = asyncio.run(scenario())
    assert neighbour["choices"] == before["choices"]
    if stream and failed.status_code == 200:
        *chunks, (event, data) = events(failed.text)
        assert event == "error" and chunks and "[DONE]" not in failed.text
    else:
        data = failed.json()
        assert failed.status_code == 400
    assert data["error"]["code"] == "structured_output_too_complex" and data["error"]["param"] == "guided_json"
    assert "too many expressions" in data["error"]["message"]
