"""The stream of progress of a response that is not streamed: its tokens as they come, then the whole body."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift.llm.build import build_service
from chairlift.llm.text_service import TextService
from support_resume import SharedClient, split_outputs
from support_server import CHAT, COMPLETIONS, events, open_server, run

PROGRESS = {"x-chairlift-progress": "1", "x-request-id": "r-1"}
BODY: dict[str, Any] = {"model": "fake", "max_tokens": 8, "temperature": 0.8, "seed": 3, "return_token_ids": True}
HELLO = [{"role": "user", "content": "Hello."}]


@pytest.fixture(scope="module")
def service() -> Iterator[TextService]:
    service = build_service(None, {})
    yield service
    service.client.close()


def send(service: TextService, *requests: tuple[str, dict[str, Any], dict[str, str]]) -> list[httpx.Response]:
    async def scenario() -> list[httpx.Response]:
        async with open_server(replace(service, client=SharedClient(service.client))) as server:
            return [
                await server.http.post(path, json={**body, "cache_salt": f"s{number}"}, headers=headers)
                for number, (path, body, headers) in enumerate(requests)
            ]

    return run(scenario())


def parts_of(response: httpx.Response) -> tuple[list[dict[str, Any]], str]:
    """Return the data of the events `progress`, and the bytes of the event `response`."""
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    *progress, (name, _) = events(response.text)
    assert name == "response" and all(each == "progress" for each, _ in progress)
    return [data for _, data in progress], response.text.rpartition("data: ")[2].removesuffix("\n\n")


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"messages": HELLO}),
        (CHAT, {"messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 1}),
        (COMPLETIONS, {"prompt": ["Once", "The dog"], "n": 2}),
        (COMPLETIONS, {"prompt": "Once upon", "echo": True, "logprobs": 1}),
        (COMPLETIONS, {"prompt": "Once upon", "stop": ["e"], "max_tokens": 40}),
    ],
    ids=["chat", "chat with logprobs", "several prompts", "echo with logprobs", "stop string"],
)
def test_progress_has_every_token_and_ends_with_the_body(
    service: TextService, path: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    split_outputs(monkeypatch)
    monkeypatch.setattr("chairlift.server.openai.response_renderers.time.time", lambda: 1_700_000_000.0)
    plain, with_progress = send(
        service, (path, BODY | more, {"x-request-id": "r-1"}), (path, BODY | more, PROGRESS)
    )  # fmt: skip
    progress, body = parts_of(with_progress)
    assert body == plain.text
    for choice in plain.json()["choices"]:
        own = [each for each in progress if each["index"] == choice["index"]]
        assert [token for each in own for token in each["token_ids"]] == choice["token_ids"]
        assert [each["position"] for each in own] == list(range(len(choice["token_ids"])))
        if choice["logprobs"] is None:
            assert all("logprobs" not in each for each in own)
            continue
        for name, values in choice["logprobs"].items():
            assert values is None or [value for each in own for value in each["logprobs"][name]] == values, name


def test_progress_of_a_resumed_request_goes_on_and_its_body_is_whole(service: TextService) -> None:
    body = {**BODY, "messages": HELLO}
    [whole] = send(service, (CHAT, body, {"x-request-id": "r-1"}))
    tokens = whole.json()["choices"][0]["token_ids"]
    [resumed] = send(service, (CHAT, {**body, "resume": [tokens[:3]]}, PROGRESS))
    progress, text = parts_of(resumed)
    assert [token for each in progress for token in each["token_ids"]] == tokens[3:] and progress[0]["position"] == 3
    assert httpx.Response(200, text=text).json() | {"created": 0} == whole.json() | {"created": 0}


def test_a_request_that_ranks_its_choices_reports_none_before_the_end(service: TextService) -> None:
    [response] = send(service, (COMPLETIONS, {**BODY, "prompt": "Once", "best_of": 3}, PROGRESS))
    progress, body = parts_of(response)
    assert progress == [] and '"choices":[{' in body


def test_an_error_before_the_first_token_keeps_its_status(service: TextService) -> None:
    invalid, expired = send(
        service,
        (CHAT, {**BODY, "messages": HELLO, "resume": [[1], [2]]}, PROGRESS),
        (CHAT, {**BODY, "messages": HELLO, "timeout": 1e-9}, PROGRESS),
    )
    assert invalid.status_code == 400 and invalid.json()["error"]["param"] == "resume"
    assert expired.status_code in (400, 408, 429) and "error" in expired.json()


def test_a_streamed_request_has_no_progress(service: TextService) -> None:
    [response] = send(service, (CHAT, {**BODY, "messages": HELLO, "stream": True}, PROGRESS))
    assert "event: " not in response.text and response.text.endswith("data: [DONE]\n\n")
