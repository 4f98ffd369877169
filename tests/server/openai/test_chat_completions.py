"""/v1/chat/completions over a fake engine: full and streamed responses are the same."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason, Usage
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.llm.output_processor import OutputProcessor
from chairlift.server.config import ServerConfig
from chairlift.server.openai.chat_completions import _ChatHandler
from chairlift.server.openai.chat_request import read_chat
from chairlift.server.openai.generation_handler import RequestContext
from chairlift.server.replica import Replica
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.reasoning_formats import THINK_TAGS, ReasoningState
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tool_formats.json_calls import HERMES
from support_engine import validated
from support_server import CHAT, HELLO, events, open_server, run
from support_services import FAKE, AsciiTokenizer, Gate, fake_service, text_of

PROMPT = "user=hello;a="
EXPECTED_TEXT = text_of(PROMPT, SamplingParams(max_tokens=5, seed=1))


def send_requests(*bodies: dict[str, Any], **options: Any) -> Any:
    async def scenario() -> list[Any]:
        async with open_server(fake_service(), **options) as server:
            return await asyncio.gather(*[server.http.post(CHAT, json=body) for body in bodies])

    return run(scenario())


def parse_stream(text: str) -> tuple[list[dict[str, Any]], dict[int, str], dict[int, str]]:
    """Return the chunks of a complete stream, and text and finish reason by choice index."""
    *chunks, last_event = events(text)
    assert last_event == "[DONE]"
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert choice["index"] not in reasons, "no chunk of a choice follows its finish reason"
        texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
        if choice["finish_reason"] is not None:
            reasons[choice["index"]] = choice["finish_reason"]
    return chunks, texts, reasons


def test_an_answer_is_what_the_engine_says() -> None:
    [response] = send_requests(HELLO)
    data = response.json()
    assert data["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": EXPECTED_TEXT, "refusal": None}, "logprobs": None,
         "finish_reason": "length"}
    ]  # fmt: skip
    assert data["usage"] == {
        "prompt_tokens": 13, "completion_tokens": 5, "total_tokens": 18, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip
    assert data["id"] == f"chatcmpl-{response.headers['x-request-id']}" and data["model"] == "fake"


def test_a_stream_says_the_same() -> None:
    [response] = send_requests({**HELLO, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks, texts, reasons = parse_stream(response.text)
    assert texts == {0: EXPECTED_TEXT} and reasons == {0: "length"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("usage" not in chunk for chunk in chunks)


def test_the_last_chunk_has_the_counts_where_they_are_asked_for() -> None:
    [response] = send_requests({**HELLO, "stream": True, "stream_options": {"include_usage": True}})
    chunks, _, _ = parse_stream(response.text)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 18
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_choices_are_distinguished() -> None:
    body = {**HELLO, "n": 3, "temperature": 1.0}
    full, stream = send_requests(body, {**body, "stream": True})
    texts = {choice["index"]: choice["message"]["content"] for choice in full.json()["choices"]}
    assert parse_stream(stream.text)[1] == texts and len(set(texts.values())) == 3 and texts[0] == EXPECTED_TEXT
    assert full.json()["usage"]["completion_tokens"] == 15


def test_ids_and_positions_come_along() -> None:
    body = {**HELLO, "return_token_ids": True}
    full, stream = send_requests(body, {**body, "stream": True})
    ids = list(EXPECTED_TEXT.encode())
    assert full.json()["choices"][0]["token_ids"] == ids
    assert full.json()["prompt_token_ids"] == list(PROMPT.encode())
    result: list[int] = []
    for chunk in parse_stream(stream.text)[0]:
        if "token_ids" in (choice := chunk["choices"][0]):
            assert choice["position"] == len(result)
            result += choice["token_ids"]
    assert result == ids


def test_a_stream_goes_on_where_another_ended() -> None:
    ids = list(EXPECTED_TEXT.encode())
    [response] = send_requests({**HELLO, "stream": True, "return_token_ids": True, "resume": [ids[:2]]})
    chunks, texts, _ = parse_stream(response.text)
    assert texts == {0: EXPECTED_TEXT[2:]}
    assert next(c["choices"][0]["position"] for c in chunks if "position" in c["choices"][0]) == 2


def test_scores_are_of_the_tokens_that_come() -> None:
    body = {**HELLO, "logprobs": True, "top_logprobs": 2}
    full, stream = send_requests(body, {**body, "stream": True})
    entries = full.json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[byte] for byte in EXPECTED_TEXT.encode()]
    result = [entry for chunk in parse_stream(stream.text)[0] for choice in chunk["choices"] if choice["logprobs"]
             for entry in choice["logprobs"]["content"]]  # fmt: skip
    assert result == entries


def test_other_tenants_share_no_prefix_and_salts_neither() -> None:
    async def scenario() -> list[int]:
        async with open_server(fake_service()) as server:
            cached_tokens = []
            for salt in (None, None, "a", "a", "b"):
                response = await server.http.post(CHAT, json={**HELLO, "cache_salt": salt})
                cached_tokens.append(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            return cached_tokens

    assert run(scenario()) == [0, 12, 0, 12, 0]


def test_an_error_before_anything_was_said_has_a_status() -> None:
    bad_request = {"messages": [{"role": "user", "content": "~"}], "max_tokens": 5, "model": "fake"}

    async def scenario() -> None:
        async with open_server(fake_service(replace(FAKE, nan=ord("~")))) as server:
            for stream in (False, True):
                response = await server.http.post(CHAT, json={**bad_request, "stream": stream})
                assert response.status_code == 500 and response.json()["error"]["code"] == "non_finite_logits"
                assert response.headers["x-should-retry"] == "false"
            assert (await server.http.post(CHAT, json=HELLO)).status_code == 200

    run(scenario())


@pytest.mark.share(1)
@pytest.mark.parametrize("source", ["field", "header"])
def test_a_request_that_takes_too_long_is_ended(source: str) -> None:
    gate = Gate()

    async def scenario() -> Any:
        async with open_server(fake_service(hook=gate)) as server:
            body = {**HELLO, "timeout": 0.2} if source == "field" else HELLO
            headers = {"x-request-timeout-ms": "200"} if source == "header" else {}
            request = asyncio.create_task(server.http.post(CHAT, json=body, headers=headers))
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.3)
            gate.opened.set()
            return await request

    response = run(scenario())
    assert response.status_code == 408 and response.json()["error"]["code"] == "timeout"
    assert response.headers["x-should-retry"] == "false"


# -- resumed streams ---------------------------------------------------------------------------------------------------

MODEL_OUTPUT = '<think> so... </think> hm <tool_call>{"name": "f", "arguments": {"a": [1, "}"]}}</tool_call> ok <tool_'


def stream_chunks(num_resumed: int, end: int = len(MODEL_OUTPUT), *, step: int = 1) -> list[dict[str, Any]]:
    """Return the deltas of MODEL_OUTPUT's tokens from `num_resumed` to `end`.

    The tokens before are resumed.
    """
    ids, tools = MODEL_OUTPUT.encode(), [{"type": "function", "function": {"name": "f"}}]
    resume = (tuple(ids[:num_resumed]),) if num_resumed else ()
    chat_request = read_chat(
        {**HELLO, "stream": True, "max_tokens": len(ids), "tools": tools, "resume": [*map(list, resume)]}, HERMES
    )
    tokenizer = AsciiTokenizer()
    request = GenerateRequest(request_id="r", prompt_token_ids=(1,), params=chat_request.params, resume=resume)
    processor = OutputProcessor(validated(request), "", tokenizer)
    processor.reasoning_state = ReasoningState.NOT_STARTED
    replica: Any = SimpleNamespace(
        formats=SimpleNamespace(reasoning_format=THINK_TAGS, token_pieces=TokenPieces(tokenizer))
    )
    renderer, data = _ChatHandler(RequestContext(replica, chat_request, "r", "", None)).renderer([processor]), b""
    for start in range(num_resumed, end, step):
        is_last = start + step >= len(ids)
        output = EngineOutput(
            "r", tuple(ids[start : start + step]), finish_reason=FinishReason.STOP if is_last else None,
            usage=Usage(1, len(ids), 0) if is_last else None,
        )  # fmt: skip
        data += b"".join(renderer.event(0, event) for event in processor.process(output))
    return [choice["delta"] for chunk in events(data.decode()) for choice in chunk["choices"]]


def join_deltas(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "", "content": "", "reasoning_content": "", "names": [], "arguments": ""}
    for delta in deltas:
        for name in ("role", "content", "reasoning_content"):
            result[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            result["names"] += [call["function"]["name"]] if "id" in call else []
            result["arguments"] += call["function"]["arguments"]
    return result


@pytest.mark.share(20)
@pytest.mark.parametrize("num_resumed", range(1, len(MODEL_OUTPUT) - 1))
def test_calls_and_reasoning_go_on_where_another_stream_ended(num_resumed: int) -> None:
    """The delivered part of the first stream and the second stream are the whole output."""
    full = join_deltas(stream_chunks(0))
    assert full == {
        "role": "assistant", "content": "hm  ok <tool_", "reasoning_content": "so...", "names": ["f"],
        "arguments": '{"a": [1, "}"]}',
    }  # fmt: skip
    assert join_deltas([*stream_chunks(0, num_resumed), *stream_chunks(num_resumed, step=3)]) == full


def test_an_answer_that_is_not_streamed_is_whole_behind_what_was_delivered() -> None:
    ids = list(EXPECTED_TEXT.encode())
    [response] = send_requests({**HELLO, "resume": [ids[:2]], "return_token_ids": True})
    [choice] = response.json()["choices"]
    assert choice["message"]["content"] == EXPECTED_TEXT and choice["token_ids"] == ids


@pytest.mark.parametrize("start", ["<think>", "", "<think></think>"])
def test_a_forced_call_may_follow_reasoning_that_the_prompt_started(start: str) -> None:
    """The end of the prompt decides what may stand before the call, and reasoning is not content."""

    async def scenario() -> tuple[Any, Any, dict[str, Any]]:
        service = fake_service()
        assert service.tokenizer is not None
        text = "{{ messages[0].content }}{% if tools %}{{ tools }}<tool_call></think>.{% endif %}" + start
        template = ChatTemplate({"default": text}, service.tokenizer)
        replica = Replica(ServerConfig(served_names=("m",)))
        replica.attach_service(replace(service, chat_template=template), lambda: None, 2048)
        try:
            tools = [{"type": "function", "function": {"name": "f"}}]
            request = read_chat({**HELLO, "tools": tools, "tool_choice": "required"}, replica.formats.tool_format)
            handler = _ChatHandler(RequestContext(replica, request, "r", "", None))
            [processor] = handler.processors()
            [builder] = handler._delta_builders(processor)
            thought = {"<think>": "so</think>\n", "": "<think>so</think>\n", "<think></think>": ""}[start]
            message = builder.message(f'{thought}<tool_call>\n{{"name": "f", "arguments": {{}}}}')
            return request.tools, processor, message
        finally:
            await replica.close()

    choice, processor, message = run(scenario())
    state = {"<think>": ReasoningState.OPEN, "": ReasoningState.NOT_STARTED, "<think></think>": ReasoningState.ENDED}
    expected = replace(choice.structured, reasoning_prefix=THINK_TAGS.prefix_of(state[start]))
    assert processor.request.params.structured == expected
    assert processor.prompt.endswith("</think>." + start), "no prefill"
    thought = None if start == "<think></think>" else "so"
    assert (message["content"], message.get("reasoning_content")) == (None, thought)
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
