"""PreparedRequests: formats of requests, and no phase repeats requests of an earlier one."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server.api_requests import CHAT, TEXT, PreparedRequests, RequestFormat
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.server_address import Address
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.core.errors import ConfigError
from chairlift.core.structured_output import StructuredOutput

ITEM = WorkloadRequest(at=0.5, prompt_token_ids=(3, 4, 36), output_tokens=9)


def fields_of(item: WorkloadRequest = ITEM, **style: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RequestFormat(model="m", **style).body(item))
    return found


def stream(spec: WorkloadSpec, **style: Any) -> PreparedRequests:
    return PreparedRequests(spec, 100, RequestFormat(model="m", **style), Client(Address.of("http://h:1/x")))


def test_ids_go_to_completions_with_an_exact_length() -> None:
    assert fields_of() == {
        "model": "m", "prompt": [3, 4, 36], "max_tokens": 9, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    assert RequestFormat(model="m").path == "/v1/completions"


def test_words_stand_for_ids_in_texts_and_chats() -> None:
    text = fields_of(prompts=TEXT)["prompt"]
    assert len(text.split()) == 3 and text.split()[1] == text.split()[2] != text.split()[0]
    assert fields_of(prompts=CHAT)["messages"] == [{"role": "user", "content": text}]
    assert RequestFormat(model="m", prompts=CHAT).path == "/v1/chat/completions"


def test_plain_is_only_what_openai_knows() -> None:
    item = WorkloadRequest(at=0.0, prompt_token_ids=(1,), output_tokens=2, tenant="a", priority=3)
    assert set(fields_of(item)) - set(fields_of(item, openai_fields_only=True)) == {
        "ignore_eos",
        "return_token_ids",
        "priority",
    }
    assert fields_of(item, openai_fields_only=True)["user"] == "a" and fields_of(item)["priority"] == 3
    assert fields_of(ignore_eos=False)["ignore_eos"] is False


@pytest.mark.parametrize(("wanted", "field", "value"), [
    ({"json_object": True}, "response_format", {"type": "json_object"}),
    ({"json_schema": {"type": "string"}}, "response_format",
     {"type": "json_schema", "json_schema": {"name": "asked", "schema": {"type": "string"}}}),
    ({"regex": "[a]"}, "regex", "[a]"), ({"grammar": "start: \"a\""}, "grammar", "start: \"a\""),
    ({"choice": ("a", "b")}, "choice", ["a", "b"]),
])  # fmt: skip
def test_structures_are_asked_for(wanted: dict[str, Any], field: str, value: Any) -> None:
    item = WorkloadRequest(at=0.0, prompt_token_ids=(1,), output_tokens=2, structured=StructuredOutput(**wanted))
    assert fields_of(item)[field] == value
    assert not RequestFormat(model="m").is_exact(item)


@pytest.mark.parametrize("wanted", [{"regex": "[a]"}, {"grammar": 'start: "a"'}, {"choice": ("a", "b")}])
def test_a_structure_that_openai_does_not_know_cannot_be_asked_for_plainly(wanted: dict[str, Any]) -> None:
    item = WorkloadRequest(at=0.0, prompt_token_ids=(1,), output_tokens=2, structured=StructuredOutput(**wanted))
    with pytest.raises(ConfigError, match="do not use --openai-fields-only"):
        fields_of(item, openai_fields_only=True)


def test_a_trace_that_cannot_be_asked_for_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    lines = [{"at": 0.0, "prompt_tokens": 2, "output_tokens": 2}] * 3
    lines.append({**lines[0], "structured": {"regex": "[a]"}})
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert stream(WorkloadSpec(name=str(trace))).size == 4
    with pytest.raises(ConfigError, match="do not use --openai-fields-only"):
        stream(WorkloadSpec(name=str(trace)), openai_fields_only=True)


def test_a_prepared_request_is_complete_with_its_timeout() -> None:
    prepare = stream(WorkloadSpec(name="uniform"), request_timeout_ms=700).prepare(ITEM)
    head, _, body = prepare.request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x/v1/completions HTTP/1.1\r\n") and b"\r\nx-request-timeout-ms: 700\r\n" in head
    assert (prepare.at, prepare.requested_tokens) == (0.5, 9) and json.loads(body)["max_tokens"] == 9
    own = WorkloadRequest(at=0.0, prompt_token_ids=(1,), output_tokens=2, timeout=1.5)
    assert (
        b"x-request-timeout-ms: 1500\r\n"
        in stream(WorkloadSpec(name="uniform"), request_timeout_ms=700).prepare(own).request
    )
    assert stream(WorkloadSpec(name="uniform"), openai_fields_only=True).prepare(ITEM).requested_tokens == 0


def test_a_generators_deck_goes_on_behind_what_was_drawn() -> None:
    spec = WorkloadSpec(name="longtail", seed=4)
    shots = stream(spec)
    prompts = [json.loads(each.request.partition(b"\r\n\r\n")[2])["prompt"] for each in islice(shots, 5)]
    prompts += [json.loads(next(shots).request.partition(b"\r\n\r\n")[2])["prompt"]]
    wanted = generate("longtail", vocab_size=100, seed=4, count=6)
    assert prompts == [list(item.prompt_token_ids) for item in wanted.items] and shots.size is None


def test_a_trace_has_its_own_times_and_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 2, "prompt": [5], "output_tokens": 1}\n{"at": 1, "prompt": [6], "output_tokens": 1}\n')
    shots = stream(WorkloadSpec(name=str(path)))
    assert [prepare.at for prepare in islice(shots, 3)] == [1.0, 2.0, 1.0] and shots.size == 2
    assert stream(WorkloadSpec(name=str(path), requests=1)).size == 1
