"""The openai client predicts outputs: no output changes, and the usage counts what became of the predicted tokens."""

import random
from typing import Any

import httpx
import openai
import pytest
from openai.types import CompletionUsage

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.config import SpeculationConfig
from support_server import CHAT, HELLO, events, open_server, run
from support_services import fake_service, text_of

DRAFTS = {"speculation": SpeculationConfig(method="prediction", num_speculative_tokens=8)}
PROMPT = "user=hello;a="
SEED = 3


def answer(max_tokens: int) -> str:
    return text_of(PROMPT, SamplingParams(max_tokens=max_tokens, seed=SEED))


def edited(text: str) -> str:
    """Return a text in which one character in 20 is another one."""
    rng = random.Random(2)
    return "".join(chr(ord(char) ^ 1) if rng.randrange(20) == 0 else char for char in text)


def ask(*bodies: dict[str, Any], scheduler: Any = DRAFTS) -> list[Any]:
    """Send chats by the openai client to a server; return the answers, of a stream as a list of chunks."""

    async def scenario() -> list[Any]:
        async with open_server(fake_service(**scheduler)) as server:
            client = openai.AsyncOpenAI(
                base_url="http://server/v1", api_key="none", max_retries=0, http_client=httpx.AsyncClient(
                    transport=server.http._transport,
                ),
            )  # fmt: skip
            results: list[Any] = []
            for body in bodies:
                result = await client.chat.completions.create(**{**HELLO, "seed": SEED, **body})
                results.append([chunk async for chunk in result] if body.get("stream") else result)
            return results

    return list(run(scenario()))


def predicting(content: Any, max_tokens: int = 100, **more: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}, "max_tokens": max_tokens, **more}


def counts(usage: CompletionUsage | None) -> tuple[int, int]:
    """Return the accepted and the rejected tokens of a usage."""
    assert usage is not None and usage.completion_tokens_details is not None
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens is not None and details.rejected_prediction_tokens is not None
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def test_a_right_prediction_is_accepted() -> None:
    [plain, right, parts] = ask(
        {"max_tokens": 100}, predicting(answer(100)),
        predicting([{"type": "text", "text": answer(100)}]),
    )  # fmt: skip
    assert right.choices == parts.choices == plain.choices and right.choices[0].message.content == answer(100)
    accepted, rejected = counts(right.usage)
    assert accepted > 80 and rejected == 0 and counts(parts.usage) == (accepted, 0)
    assert plain.usage.completion_tokens_details is None
    assert (right.usage.prompt_tokens, right.usage.completion_tokens) == (13, 100)


def test_a_wrong_prediction_changes_nothing_but_the_count_of_rejected_tokens() -> None:
    wrong = "".join(chr(ord(char) ^ 1) for char in answer(100))
    right_at_first = answer(100)[:30] + wrong[30:]
    [first, second, empty] = ask(predicting(right_at_first), predicting(edited(answer(100))), predicting(""))
    for result in (first, second, empty):
        assert result.choices[0].message.content == answer(100) and result.usage.completion_tokens == 100
    assert 20 <= counts(first.usage)[0] <= 30 and 0 < counts(first.usage)[1] <= 16
    accepted, rejected = counts(second.usage)
    assert accepted > 40 and rejected > 0
    assert counts(empty.usage) == (0, 0)


def test_the_last_chunk_of_a_stream_counts_the_same() -> None:
    body = predicting(edited(answer(100)))
    [whole, stream, without] = ask(
        body, {**body, "stream": True, "stream_options": {"include_usage": True}}, {**body, "stream": True}
    )
    *_, last = stream
    assert counts(last.usage) == counts(whole.usage) and last.choices == []
    for chunks in (stream, without):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == answer(100)
    assert all(chunk.usage is None for chunk in without)


def test_all_choices_use_the_prediction() -> None:
    right_at_first = answer(100)[:90] + "@" * 10
    [one, several] = ask(predicting(right_at_first), predicting(right_at_first, n=3))
    accepted, rejected = counts(several.usage)
    assert len({choice.message.content for choice in several.choices}) == 3
    assert several.choices[0] == one.choices[0]
    assert accepted > 60 and rejected > 0


def test_a_stop_string_ends_an_accepted_prediction() -> None:
    stop = answer(100)[48:52]
    [result, plain] = ask(predicting(answer(100), stop=[stop]), {"max_tokens": 100, "stop": [stop]})
    assert result.choices == plain.choices and result.choices[0].finish_reason == "stop"
    assert result.choices[0].message.content == answer(100)[: answer(100).index(stop)]
    assert result.usage.completion_tokens == plain.usage.completion_tokens


def test_without_speculation_a_prediction_is_taken_and_has_no_effect() -> None:
    [result] = ask(predicting(answer(50), 50), scheduler={})
    assert result.choices[0].message.content == answer(50) and counts(result.usage) == (0, 0)


def test_a_resumed_stream_follows_its_prediction_from_where_it_is() -> None:
    body = {**HELLO, **predicting(answer(100)), "seed": SEED, "return_token_ids": True, "stream": True,
            "stream_options": {"include_usage": True}, "resume": [list(answer(100)[:60].encode())]}  # fmt: skip

    async def scenario() -> list[Any]:
        async with open_server(fake_service(**DRAFTS)) as server:
            return events((await server.http.post(CHAT, json=body)).text)

    *chunks, last, done = run(scenario())
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == answer(100)[60:]
    details = last["usage"]["completion_tokens_details"]
    assert last["usage"]["completion_tokens"] == 100
    assert 30 <= details["accepted_prediction_tokens"] < 40 and details["rejected_prediction_tokens"] == 0


@pytest.mark.parametrize(("prediction", "param"), [
    ({"type": "tokens", "content": "x"}, "prediction.type"), ({"type": "content"}, "prediction.content"),
    ("x", "prediction"),
])  # fmt: skip
def test_a_bad_prediction_is_an_error_of_the_client(prediction: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask({"prediction": prediction})
    assert caught.value.param == param
