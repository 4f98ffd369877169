"""/v1/chat/completions over a fake engine: what it says is what the engine says, whole or streamed."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.request import EngineOutput, FinishReason, GenerateRequest, Usage
from chairlift.core.sampling import SamplingParams
from chairlift.llm.output_processor import OutputProcessor
from chairlift.server.openai.chat_completions import _ChatHandler
from chairlift.server.openai.endpoint import RequestContext
from chairlift.server.openai.parse_request import read_chat
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tool_parser import HERMES
from support_engine import validated
from support_server import CHAT, HELLO, events, open_server, run
from support_services import FAKE, AsciiTokenizer, Gate, fake_service, text_of

PROMPT = "user=hello;a="
SAID = text_of(PROMPT, SamplingParams(max_tokens=5, seed=1))


def ask(*bodies: dict[str, Any], **options: Any) -> Any:
    async def scenario() -> list[Any]:
        async with open_server(fake_service(), **options) as server:
            return await asyncio.gather(*[server.http.post(CHAT, json=body) for body in bodies])

    return run(scenario())


def streamed(text: str) -> tuple[list[dict[str, Any]], dict[int, str], dict[int, str]]:
    """Return the chunks of a stream that went well, and by choice its text and why it ended."""
    *chunks, done = events(text)
    assert done == "[DONE]"
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert choice["index"] not in reasons, "nothing comes behind a reason"
        texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
        if choice["finish_reason"] is not None:
            reasons[choice["index"]] = choice["finish_reason"]
    return chunks, texts, reasons


def test_an_answer_is_what_the_engine_says() -> None:
    [response] = ask(HELLO)
    data = response.json()
    assert data["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": SAID, "refusal": None}, "logprobs": None,
         "finish_reason": "length"}
    ]  # fmt: skip
    assert data["usage"] == {
        "prompt_tokens": 13, "completion_tokens": 5, "total_tokens": 18, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip
    assert data["id"] == f"chatcmpl-{response.headers['x-request-id']}" and data["model"] == "fake"


def test_a_stream_says_the_same() -> None:
    [response] = ask({**HELLO, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks, texts, reasons = streamed(response.text)
    assert texts == {0: SAID} and reasons == {0: "length"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("usage" not in chunk for chunk in chunks)


def test_the_last_chunk_has_the_counts_where_they_are_asked_for() -> None:
    [response] = ask({**HELLO, "stream": True, "stream_options": {"include_usage": True}})
    chunks, _, _ = streamed(response.text)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 18
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_choices_are_distinguished() -> None:
    body = {**HELLO, "n": 3, "temperature": 1.0}
    whole, stream = ask(body, {**body, "stream": True})
    texts = {choice["index"]: choice["message"]["content"] for choice in whole.json()["choices"]}
    assert streamed(stream.text)[1] == texts and len(set(texts.values())) == 3 and texts[0] == SAID
    assert whole.json()["usage"]["completion_tokens"] == 15


def test_ids_and_positions_come_along() -> None:
    body = {**HELLO, "return_token_ids": True}
    whole, stream = ask(body, {**body, "stream": True})
    ids = list(SAID.encode())
    assert whole.json()["choices"][0]["token_ids"] == ids
    assert whole.json()["prompt_token_ids"] == list(PROMPT.encode())
    result: list[int] = []
    for chunk in streamed(stream.text)[0]:
        if "token_ids" in (choice := chunk["choices"][0]):
            assert choice["position"] == len(result)
            result += choice["token_ids"]
    assert result == ids


def test_a_stream_goes_on_where_another_ended() -> None:
    ids = list(SAID.encode())
    [response] = ask({**HELLO, "stream": True, "return_token_ids": True, "resume": [ids[:2]]})
    chunks, texts, _ = streamed(response.text)
    assert texts == {0: SAID[2:]}
    assert next(c["choices"][0]["position"] for c in chunks if "position" in c["choices"][0]) == 2


def test_scores_are_of_the_tokens_that_come() -> None:
    body = {**HELLO, "logprobs": True, "top_logprobs": 2}
    whole, stream = ask(body, {**body, "stream": True})
    entries = whole.json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[byte] for byte in SAID.encode()]
    result = [entry for chunk in streamed(stream.text)[0] for choice in chunk["choices"] if choice["logprobs"]
             for entry in choice["logprobs"]["content"]]  # fmt: skip
    assert result == entries


def test_other_tenants_share_no_prefix_and_salts_neither() -> None:
    async def scenario() -> list[int]:
        async with open_server(fake_service()) as server:
            seen = []
            for salt in (None, None, "a", "a", "b"):
                response = await server.http.post(CHAT, json={**HELLO, "cache_salt": salt})
                seen.append(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            return seen

    assert run(scenario()) == [0, 12, 0, 12, 0]


def test_an_error_before_anything_was_said_has_a_status() -> None:
    poisoned = {"messages": [{"role": "user", "content": "~"}], "max_tokens": 5, "model": "fake"}

    async def scenario() -> None:
        from dataclasses import replace

        async with open_server(fake_service(replace(FAKE, nan=ord("~")))) as server:
            for stream in (False, True):
                response = await server.http.post(CHAT, json={**poisoned, "stream": stream})
                assert response.status_code == 500 and response.json()["error"]["code"] == "non_finite_logits"
                assert response.headers["x-should-retry"] == "false"
            assert (await server.http.post(CHAT, json=HELLO)).status_code == 200

    run(scenario())


@pytest.mark.parametrize("where", ["field", "header"])
def test_a_request_that_takes_too_long_is_ended(where: str) -> None:
    gate = Gate()

    async def scenario() -> Any:
        async with open_server(fake_service(hook=gate)) as server:
            body = {**HELLO, "timeout": 0.2} if where == "field" else HELLO
            headers = {"x-request-timeout-ms": "200"} if where == "header" else {}
            asked = asyncio.create_task(server.http.post(CHAT, json=body, headers=headers))
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.3)
            gate.opened.set()
            return await asked

    response = run(scenario())
    assert response.status_code == 408 and response.json()["error"]["code"] == "timeout"
    assert response.headers["x-should-retry"] == "false"


# -- a stream that goes on elsewhere -----------------------------------------------------------------------------------

SPOKEN = '<think> so... </think> hm <tool_call>{"name": "f", "arguments": {"a": [1, "}"]}}</tool_call> ok <tool_'


def stream_chunks(resumed: int, until: int = len(SPOKEN), *, step: int = 1) -> list[dict[str, Any]]:
    """Return the deltas of a model that says SPOKEN, of its tokens from one to another; the others came before."""
    ids, tools = SPOKEN.encode(), [{"type": "function", "function": {"name": "f"}}]
    resume = (tuple(ids[:resumed]),) if resumed else ()
    asked = read_chat(
        {**HELLO, "stream": True, "max_tokens": len(ids), "tools": tools, "resume": [*map(list, resume)]}, HERMES
    )
    reader = AsciiTokenizer()
    request = GenerateRequest(request_id="r", prompt_token_ids=(1,), params=asked.params, resume=resume)
    assembler = OutputProcessor(validated(request), "", reader)
    replica: Any = SimpleNamespace(is_reasoning_model=True, token_pieces=TokenPieces(reader))
    renderer, sent = _ChatHandler(RequestContext(replica, asked, "r", "", None)).renderer([assembler]), b""
    for at in range(resumed, until, step):
        is_last = at + step >= len(ids)
        output = EngineOutput(
            "r", tuple(ids[at : at + step]), finish_reason=FinishReason.STOP if is_last else None,
            usage=Usage(1, len(ids), 0) if is_last else None,
        )  # fmt: skip
        sent += b"".join(renderer.event(0, event) for event in assembler.process(output))
    return [choice["delta"] for chunk in events(sent.decode()) for choice in chunk["choices"]]


def together(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "", "content": "", "reasoning_content": "", "names": [], "arguments": ""}
    for delta in deltas:
        for name in ("role", "content", "reasoning_content"):
            result[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            result["names"] += [call["function"]["name"]] if "id" in call else []
            result["arguments"] += call["function"]["arguments"]
    return result


@pytest.mark.parametrize("resumed", range(1, len(SPOKEN) - 1))
def test_calls_and_reasoning_go_on_where_another_stream_ended(resumed: int) -> None:
    """What was delivered of the first stream and all of the second are the whole: nothing is lost or said twice."""
    whole = together(stream_chunks(0))
    assert whole == {
        "role": "assistant", "content": "hm  ok <tool_", "reasoning_content": "so...", "names": ["f"],
        "arguments": '{"a": [1, "}"]}',
    }  # fmt: skip
    assert together([*stream_chunks(0, resumed), *stream_chunks(resumed, step=3)]) == whole


def test_an_answer_that_is_not_streamed_is_whole_behind_what_was_delivered() -> None:
    ids = list(SAID.encode())
    [response] = ask({**HELLO, "resume": [ids[:2]], "return_token_ids": True})
    [choice] = response.json()["choices"]
    assert choice["message"]["content"] == SAID and choice["token_ids"] == ids
