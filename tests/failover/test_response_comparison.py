"""read_response and difference: what is the same however it was cut, and what counts as a problem."""

import json
from typing import Any

import pytest

from failover.response_comparison import BadResponse, difference, num_received_tokens, read_response
from support_shares import for_each

DONE = b"data: [DONE]\n\n"


def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
    body = {"id": "a", "object": "x", "created": 5, "model": "m", "choices": list(choices), **more}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def choice(text: str, index: int = 0, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, **more}


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    call = {"index": index, "function": {"arguments": arguments, **more}}
    return {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}


def read(*chunks: bytes) -> dict[str, Any]:
    return read_response(b"".join(chunks) + DONE, is_streamed=True)


def test_how_a_stream_is_cut_into_chunks_does_not_matter() -> None:
    last = chunk(usage={"total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}})
    one = read(chunk(choice("ab", reason="stop", token_ids=[1, 2], position=0)), last)
    two = read(chunk(choice("a", token_ids=[1], position=0)),
               chunk(choice("b", reason="stop", token_ids=[2], position=1)), last)  # fmt: skip
    assert one == two and difference(one, two) == ""
    assert one["choices"][0] == {"finish_reason": "stop", "token_ids": [1, 2], "text": "ab"}
    assert one["usage"] == {"total_tokens": 3} and "created" not in one


def test_tool_calls_and_logprobs_are_joined() -> None:
    entries = [{"token": "a"}], [{"token": "b"}]
    parts = [chunk({"index": 0, "delta": {"role": "assistant"}, "finish_reason": None, "logprobs": {"content": each}})
             for each in entries]  # fmt: skip
    content = read(
        parts[0], chunk(call(0, '{"a"', name="f")), parts[1], chunk(call(0, ":1}")), chunk(call(1, "{}", name="g"))
    )
    joined = content["choices"][0]
    assert joined["tool_calls"] == {0: {"arguments": '{"a":1}', "name": "f"}, 1: {"arguments": "{}", "name": "g"}}
    assert joined["logprobs"]["content"] == [*entries[0], *entries[1]]
    assert joined["role"] == "assistantassistant", "a role that comes twice is a difference"


def counted(num_tokens: int, *choices: dict[str, Any]) -> bytes:
    usage = {"prompt_tokens": 5, "completion_tokens": num_tokens, "total_tokens": 5 + num_tokens}
    return chunk(*choices, usage=usage)


def test_counts_of_each_chunk_lead_to_the_last() -> None:
    content = read(counted(1, choice("a")), counted(3, choice("bc", reason="stop")), counted(3))
    assert content["usage"]["completion_tokens"] == 3
    ids = {"token_ids": [1, 2], "position": 0}
    assert read(counted(2, choice("a", reason="stop", **ids)), counted(2))["usage"]["total_tokens"] == 7


@for_each(("chunks", "message"), [
    ([counted(3, choice("a")), counted(2, choice("b"))], "counts 2 tokens behind 3"),
    ([counted(3, choice("a", reason="stop")), counted(4)], "counts 4 tokens behind 3"),
    ([chunk(choice("a"), usage={"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 7})], "is no sum"),
    ([counted(2, choice("a", token_ids=[1], position=0))], "counts 2 tokens of 1"),
])  # fmt: skip
def test_wrong_counts_are_a_problem(chunks: list[bytes], message: str) -> None:
    with pytest.raises(BadResponse, match=message):
        read(*chunks)


@for_each(
    ("chunks", "message"),
    [
        ([chunk(choice("a", reason="stop")), chunk(choice("b"))], "goes on behind its finish reason"),
        (
            [chunk(choice("a", token_ids=[1], position=0)), chunk(choice("b", token_ids=[2], position=0))],
            "token 0 instead",
        ),
        (
            [chunk(choice("a", token_ids=[1], position=0)), chunk(choice("b", token_ids=[2], position=2))],
            "token 2 instead",
        ),
        ([chunk(choice("a")), chunk(choice("b"), id="b")], "id changes"),
        ([chunk(usage={"total_tokens": 1}), chunk(usage={"total_tokens": 1})], "goes on behind its usage"),
        ([b'event: error\ndata: {"error":{}}\n\n'], "another event"),
    ],
)
def test_a_stream_that_contradicts_itself_is_a_problem(chunks: list[bytes], message: str) -> None:
    with pytest.raises(BadResponse, match=message):
        read(*chunks)


def test_a_stream_without_done_and_a_cut_body_are_problems() -> None:
    with pytest.raises(BadResponse, match="ends without"):
        read_response(chunk(choice("a", reason="stop")), is_streamed=True)
    with pytest.raises(BadResponse, match="no JSON"):
        read_response(b'{"choices": [', is_streamed=False)


def test_a_difference_names_its_place() -> None:
    expected = {"choices": {0: {"text": "abcd", "token_ids": [1, 2]}}, "usage": {"total_tokens": 3}}
    assert "choices.0.text has length 4 instead of 4 and differs from 2 on: 'Xd'" in difference(
        expected, {**expected, "choices": {0: {"text": "abXd", "token_ids": [1, 2]}}}
    )
    assert "token_ids[1] is 3 instead of 2" in difference(
        expected, {"choices": {0: {"text": "abcd", "token_ids": [1, 3]}}}
    )
    assert "usage is None" in difference(expected, {"choices": expected["choices"]})
    assert "extra is 1 instead of None" in difference(expected, {**expected, "extra": 1})


def test_tokens_are_counted_by_their_ids_or_else_by_chunks() -> None:
    assert num_received_tokens(chunk(choice("ab", token_ids=[1, 2], position=0)) + chunk(choice("", token_ids=[]))) == 2
    assert num_received_tokens(chunk(choice("ab")) + chunk(choice("c")) + chunk(usage={})) == 2
