"""Requests that are cut and resumed over HTTP: what both parts bring together, and a model with scripted replies."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import httpx
import pytest

from chairlift.core.engine_output import EngineOutput
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_event import TextEvent
from chairlift.llm.text_service import TextService
from chairlift.server.openai.chat_delta import merged_delta
from chairlift.text.chat_template import ChatTemplate
from support_scripted_model import CONFIG, TEMPLATE, TOKENIZER, ReplyRunner
from support_server import events

Chunk = dict[str, Any]
_salts = count()


class SharedClient:
    """An engine client that a server does not close."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def close(self) -> None:
        pass


def reply_service(template: str = TEMPLATE) -> TextService:
    """Start an engine whose model repeats the last message of a conversation; the caller closes its client."""
    vocabulary = GrammarTokenizer(TOKENIZER.serialized().encode(), TOKENIZER.eos_token_ids)
    options = SchedulerConfig()
    return TextService(
        client=InlineClient(EngineLoop(ReplyRunner(CONFIG), options), vocabulary=vocabulary), tokenizer=TOKENIZER,
        chat_template=ChatTemplate({"default": template}, TOKENIZER),
        defaults=ModelDefaults(eos_token_ids=TOKENIZER.eos_token_ids), model="fake",
        max_queue_size=options.max_queue_size, seeds=random.Random(5),
    )  # fmt: skip


def split_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams have one chunk for each token, also where the event loop reads several tokens at once."""
    process = OutputProcessor.process

    def process_split(processor: OutputProcessor, output: EngineOutput) -> list[TextEvent]:
        *front, last = range(max(1, len(output.token_ids)))
        part = output._replace(finish_reason=None, error=None, usage=None, timeline=None)
        events: list[TextEvent] = []
        for at in (*front, last):
            own = {"token_ids": output.token_ids[at : at + 1], "logprobs": output.logprobs[at : at + 1]}
            events += process(processor, (output if at == last else part)._replace(**own))
            part, output = part._replace(prompt_logprobs=()), output._replace(prompt_logprobs=())
        return events

    monkeypatch.setattr(OutputProcessor, "process", process_split)


async def post(http: httpx.AsyncClient, path: str, body: Mapping[str, Any], **headers: str) -> httpx.Response:
    """Send a request whose prompt no other one has cached; its id is always the same."""
    response = await http.post(
        path, json={**body, "cache_salt": f"salt {next(_salts)}"}, headers={"x-request-id": "r-1", **headers}
    )
    assert response.status_code == 200, response.text
    return response


def chunks_of(response: httpx.Response) -> list[Chunk]:
    """Return the chunks of a complete stream without the time of their creation."""
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    for chunk in chunks:
        del chunk["created"]
    return chunks


def delivered_tokens(chunks: Sequence[Chunk], num_choices: int) -> tuple[list[list[int]], set[int]]:
    """Return the token ids of each choice as a router keeps them, and the choices that have ended."""
    tokens: list[list[int]] = [[] for _ in range(num_choices)]
    ended: set[int] = set()
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["position"] == len(tokens[choice["index"]]), "the chunks of a choice have no gap"
            tokens[choice["index"]] += choice["token_ids"]
            if choice["finish_reason"] is not None:
                ended.add(choice["index"])
    return tokens, ended


def joined(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Return what a client has after these chunks: each choice as a whole, the usage, and what every chunk repeats."""
    result: dict[str, Any] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts = result.setdefault(choice["index"], {"texts": [], "deltas": [], "logprobs": {}, "reasons": []})
            parts["texts"].append(choice.get("text", ""))
            parts["deltas"].append(choice.get("delta", {}))
            for name, values in (choice["logprobs"] or {}).items():
                parts["logprobs"][name] = parts["logprobs"].get(name, []) + (values or [])
            parts["reasons"].append(choice["finish_reason"])
            parts["stop_reason"] = choice.get("stop_reason", parts.get("stop_reason"))
    for parts in result.values():
        parts["text"] = "".join(parts.pop("texts"))
        parts["delta"] = merged_delta(parts.pop("deltas"))
        parts["is_ended_by_last_chunk"] = [reason is not None for reason in parts["reasons"]].count(True) == 1
        parts["reason"] = parts.pop("reasons")[-1]
    result["usage"] = [chunk["usage"] for chunk in chunks if chunk.get("usage") is not None]
    result["envelopes"] = {
        json.dumps({name: value for name, value in chunk.items() if name not in ("choices", "usage")})
        for chunk in chunks
    }
    return result


async def check_every_cut(
    http: httpx.AsyncClient, path: str, body: Mapping[str, Any], *, num_choices: int = 1, min_chunks: int = 5
) -> dict[str, Any]:
    """Cut a stream after each number of chunks and resume it; assert that the client has the same as without a cut.

    Returns what the uncut stream brought.
    """
    streamed = {**body, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    uncut = chunks_of(await post(http, path, streamed))
    expected = joined(uncut)
    *content, usage = uncut
    assert usage["choices"] == [] and len(content) >= min_chunks, len(content)

    async def check_cut(num_delivered: int) -> None:
        before = content[:num_delivered]
        tokens, ended = delivered_tokens(before, num_choices)
        after = chunks_of(await post(http, path, {**streamed, "resume": tokens}))
        repeated = [chunk for chunk in after if chunk["choices"] and chunk["choices"][0]["index"] in ended]
        assert all(chunk["choices"][0]["token_ids"] == [] for chunk in repeated), "only an end is repeated"
        assert not any(choice.get("text") or choice.get("delta") for chunk in repeated for choice in chunk["choices"])
        reasons = {chunk["choices"][0]["index"]: chunk["choices"][0]["finish_reason"] for chunk in repeated}
        assert reasons == {index: expected[index]["reason"] for index in ended}, "an end is repeated as it was"
        whole = [*before, *(chunk for chunk in after if chunk not in repeated)]
        assert joined(whole) == expected, f"cut after {num_delivered} of {len(content)} chunks"
        assert delivered_tokens(whole[:-1], num_choices) == delivered_tokens(content, num_choices)

    await asyncio.gather(*[check_cut(num_delivered) for num_delivered in range(len(content) + 1)])
    return expected


async def check_every_whole_response(
    http: httpx.AsyncClient, path: str, body: Mapping[str, Any], *, num_choices: int = 1
) -> None:
    """Resume a response that is not streamed from each number of tokens; assert that its body is the same.

    The logprobs are those of the new tokens.
    """
    whole = {**body, "return_token_ids": True}
    uncut = _body_of(await post(http, path, whole))
    tokens = [choice["token_ids"] for choice in uncut["choices"]]
    assert len(tokens) == num_choices

    async def check_cut(num_tokens: int) -> None:
        resume = [each[:num_tokens] for each in tokens]
        resumed = _body_of(await post(http, path, {**whole, "resume": resume}))
        for choice, own, before in zip(resumed["choices"], uncut["choices"], resume, strict=True):
            if own["logprobs"] is None:
                continue
            for name, values in choice.pop("logprobs").items():
                all_values = own["logprobs"][name]
                assert values == (all_values[-len(values) :] if values else values), name
                if values is not None and not (body.get("echo") and not before):
                    assert len(values) == len(own["token_ids"]) - len(before), name
        expected = {**uncut, "choices": [dict(choice) for choice in uncut["choices"]]}
        for choice in expected["choices"]:
            if choice["logprobs"] is not None:
                del choice["logprobs"]
        assert resumed == expected, num_tokens

    await asyncio.gather(*[check_cut(num_tokens) for num_tokens in range(max(map(len, tokens)) + 1)])


def _body_of(response: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    del body["created"]
    return body
