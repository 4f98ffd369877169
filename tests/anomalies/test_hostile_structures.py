"""Invalid or very costly structured outputs fail only their own request, and nothing is fetched."""

import asyncio
import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from chairlift import LLM, AsyncLLM, SamplingParams, StructuredOutput
from chairlift.core.errors import InvalidRequest, StructuredOutputFailed
from chairlift.llm.builtin_models import RANDOM
from support_shares import FULL

INVALID: list[dict[str, Any]] = [
    {"json_schema": {"type": "banana"}}, {"regex": "(("}, {"regex": "(?=a)b"}, {"regex": r"(a)\1"},
    {"json_schema": {"$ref": "#"}}, {"json_schema": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
    {"json_schema": {"$ref": "http://127.0.0.1:9/schema.json"}}, {"json_schema": {"$ref": "file:///etc/hostname"}},
    {"json_schema": {"type": "string", "pattern": "(("}}, {"json_schema": {"not": {}}}, {"grammar": "start: start"},
    {"json_schema": {"type": "integer", "multipleOf": 999_983}},
    {"json_schema": {"allOf": [{"properties": {f"k{name}": {"type": "string"}}} for name in range(300)]}},
    {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1} | \"x\"" for i in range(3000)) + '\nr3000: "z"'},
]  # fmt: skip
COSTLY: list[dict[str, Any]] = [
    {"regex": "(((a{0,100}){0,100}){0,100}){0,100}"}, {"regex": "(a*)*(a*)*(a*)*c"}, {"regex": "[ab]*a[ab]{300}c"},
    {"regex": r"\p{L}{1,1000}"}, {"json_schema": {"enum": list(range(20_000))}},
    {"choice": [f"choice {number}" for number in range(15_000)]}, {"grammar": 'start: "a" start'},
    {"grammar": 'start: start start | "a" |'}, {"json_schema": {"type": "string", "minLength": 10**9}},
    {"json_schema": {"type": "object", "properties": {f"p{name}": {"type": "string"} for name in range(5000)}}},
    {"json_schema": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}},
    {"json_schema": {"anyOf": [
        {"type": "object", "properties": {f"k{m}": {"enum": [m, str(n)]} for m in range(30)}} for n in range(60)
    ]}},
]  # fmt: skip
NEIGHBOURS = ["one", "another", "a third"]


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.full), True])
def test_they_end_alone(overlap: bool) -> None:
    plain = SamplingParams(seed=5, max_tokens=60, ignore_eos=True)
    with LLM(RANDOM, overlap=overlap, seed=2) as llm:
        expected = [result.outputs[0].token_ids for result in llm.generate(NEIGHBOURS, plain, use_tqdm=False)]
        hostile = [SamplingParams(seed=1, max_tokens=20, structured=StructuredOutput(**structure))
                   for structure in INVALID + COSTLY]  # fmt: skip
        results = llm.generate([*["x"] * len(hostile), *NEIGHBOURS], [*hostile, *[plain] * 3], use_tqdm=False)
        for structure, result in zip(INVALID, results, strict=False):
            assert isinstance(result.error, InvalidRequest), (str(structure)[:100], result)
            assert result.error.details["param"] == "structured" and len(result.error.message) < 500
        for structure, result in zip(COSTLY, results[len(INVALID) :], strict=False):
            assert result.error is None or isinstance(result.error, InvalidRequest | StructuredOutputFailed), str(
                structure
            )[:100]
        assert [result.outputs[0].token_ids for result in results[-3:]] == expected
        assert llm.check_integrity() == []


def test_nothing_is_fetched_for_a_schema() -> None:
    """No connection to the address that a schema names, neither directly nor through a proxy."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        schemas: list[dict[str, Any]] = [
            {"$ref": f"http://{address}/schema.json"}, {"$ref": f"http://{address}/a#/$defs/b"},
            {"$schema": f"http://{address}/", "type": "null"}, {"$id": f"http://{address}/", "$ref": "other.json"},
        ]  # fmt: skip
        params = [SamplingParams(structured=StructuredOutput(json_schema=schema), max_tokens=20) for schema in schemas]
        with pytest.MonkeyPatch.context() as patch, LLM(RANDOM) as llm:
            for proxy in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
                patch.setenv(proxy, f"http://{address}")
            results = llm.generate(["x"] * len(params), params, use_tqdm=False)
        is_refused = ["$ref" in schema for schema in schemas]  # $schema names the language, and nothing reads it
        assert [isinstance(result.error, InvalidRequest) for result in results] == is_refused
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.full
def test_a_stream_goes_on_while_the_compiler_is_stuck() -> None:
    """Grammars compile in another process: tokens of another request arrive meanwhile."""

    async def run() -> list[str]:
        events: list[str] = []
        async with AsyncLLM(RANDOM, engine_mode="process") as llm:

            async def send_invalid() -> None:
                params = SamplingParams(max_tokens=5, structured=StructuredOutput(**INVALID[11]))
                async for event in llm.generate("x", params):
                    events.append(f"stuck {event.error.code if event.error else ''}")

            async def send_valid() -> None:
                async for event in llm.generate("y", SamplingParams(max_tokens=10, ignore_eos=True)):
                    events.extend(["token"] * len(event.token_ids))

            await asyncio.gather(send_invalid(), send_valid())
        return events

    events = asyncio.run(run())
    assert events == [*["token"] * 10, "stuck invalid_request"]


SCRIPT = """
import json, sys
from chairlift import LLM, SamplingParams, StructuredOutput

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

def make_params(number):
    name = f"name {number}"
    schema = {"type": "object", "properties": {name: {"enum": [number, "x" * 50]}}, "required": [name]}
    return SamplingParams(temperature=0, max_tokens=4, structured=StructuredOutput(json_schema=schema))

count, sizes = int(sys.argv[1]), []
with LLM("chairlift:random") as llm:
    for start in range(0, count, 100):
        results = llm.generate(["x"] * 100, [make_params(start + n) for n in range(100)], use_tqdm=False)
        assert all(result.error is None for result in results)
        sizes.append(resident())
json.dump(sizes, sys.stdout)
"""


@pytest.mark.full
def test_thousands_of_schemas_in_a_row_leave_memory_flat() -> None:
    count = 10_000 if FULL else 800
    process = subprocess.run([sys.executable, "-c", SCRIPT, str(count)], capture_output=True, text=True, timeout=900)
    assert process.returncode == 0, process.stderr
    resident_bytes = json.loads(process.stdout)
    assert max(resident_bytes[5:]) - resident_bytes[4] < 24 * 2**20, [value >> 20 for value in resident_bytes]
