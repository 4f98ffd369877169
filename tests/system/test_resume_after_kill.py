"""A replica is killed while it streams; another replica goes on, and the client has what an uncut stream brings."""

import asyncio
import json
from typing import Any

import httpx

from chairlift.engine.runner.fake_model import FakeConfig
from support_faults import unlimited_client
from support_resume import delivered_tokens, joined
from support_server import CHAT, COMPLETIONS, HELLO, events, fake_server, run

ENGINE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.004)
ROUTER = {"x-chairlift-router": "1", "x-request-id": "r-1"}
STREAM = {"stream": True, "return_token_ids": True, "seed": 7, "max_tokens": 120}
REQUESTS: tuple[tuple[str, dict[str, Any], int], ...] = (
    (CHAT, {**HELLO, **STREAM}, 1),
    (CHAT, {**HELLO, **STREAM, "n": 2, "frequency_penalty": 1.0}, 2),
    (COMPLETIONS, {"model": "fake", "prompt": ["a", "bcd"], **STREAM, "logprobs": 1}, 2),
)  # fmt: skip
PROGRESS = {**HELLO, "seed": 7, "max_tokens": 120}
PROGRESS_HEADERS = {**ROUTER, "x-chairlift-progress": "1"}


async def read(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str], num_started: list[int]
) -> list[Any]:
    """Return the complete events of a response, also of one that is cut."""
    text = ""
    try:
        async with http.stream("POST", path, json=body, headers=headers) as response:
            assert response.status_code == 200 and "x-chairlift-load" in response.headers
            async for piece in response.aiter_text():
                num_started.extend([] if text else [1])
                text += piece
    except httpx.HTTPError:
        pass
    return events(text[: text.rfind("\n\n") + 2])


def chunks_of(stream: list[Any]) -> list[dict[str, Any]]:
    return [{**chunk, "created": 0} for chunk in stream if chunk != "[DONE]"]


def test_streams_of_a_killed_replica_go_on_elsewhere() -> None:
    with fake_server(ENGINE) as first, fake_server(ENGINE) as second:

        async def scenario() -> None:
            async with unlimited_client(first) as http, unlimited_client(second) as other:
                started: list[int] = []
                tasks = [asyncio.create_task(read(http, path, body, ROUTER, started)) for path, body, _ in REQUESTS] + [
                    asyncio.create_task(read(http, CHAT, PROGRESS, PROGRESS_HEADERS, started))
                ]
                while len(started) < len(tasks):
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)
                first.process.kill()
                *cut, progress = await asyncio.gather(*tasks)
                for before, (path, body, num_choices) in zip(cut, REQUESTS, strict=True):
                    assert before and "[DONE]" not in before
                    tokens, _ = delivered_tokens(before, num_choices)
                    after = await read(other, path, {**body, "resume": tokens}, ROUTER, [])
                    uncut = await read(other, path, body, ROUTER, [])
                    assert after[-1] == uncut[-1] == "[DONE]"
                    assert joined(chunks_of([*before, *after])) == joined(chunks_of(uncut)) | {"usage": []}
                await check_progress(other, progress)

        run(scenario())


async def check_progress(http: httpx.AsyncClient, before: list[Any]) -> None:
    """Resume a response that is not streamed from its progress; assert that its body is that of the plain one."""
    tokens = [token for name, data in before if name == "progress" for token in data["token_ids"]]
    assert 0 < len(tokens) < PROGRESS["max_tokens"]
    *after, (name, body) = await read(http, CHAT, {**PROGRESS, "resume": [tokens]}, PROGRESS_HEADERS, [])
    assert name == "response" and after[0][1]["position"] == len(tokens)
    plain = (await http.post(CHAT, json=PROGRESS, headers={"x-request-id": "r-1"})).json()
    body["usage"].pop("prompt_tokens_details"), plain["usage"].pop("prompt_tokens_details")
    assert json.dumps({**body, "created": 0}) == json.dumps({**plain, "created": 0})
