"""append_members: the client's bytes stay; DeliveredTokens: no token twice, no gaps, logprobs of all attempts."""

from typing import Any

import orjson
import pytest

from chairlift.router.attempts.attempt_reader import AttemptReader, ResponseMode
from chairlift.router.attempts.chunks import BadChunk, Chunk, ChunkKind
from chairlift.router.attempts.resume import DeliveredTokens, append_members
from chairlift.web.body import parse_json_object
from support_attempts import chunk
from support_shares import for_each


def tokens(index: int, *token_ids: int, position: int | None = None, is_last: bool = False) -> Chunk:
    return Chunk(b"x", ChunkKind.CHOICE, index, token_ids, position, is_last)


@for_each(
    "body",
    [
        b"{}", b" {\n} \n", b'{"a": {"b": {}}}', b'{"a":"}"}\r\n', b'{"seed":null,"resume":[[1]],"a":1}',
        b'{"a":"{","seed":1}', b'{"\\u007d":{}}',
    ],
)  # fmt: skip
def test_members_are_appended_and_the_last_of_a_name_counts(body: bytes) -> None:
    members = {"seed": 5, "resume": [[1, 2], []], "return_token_ids": True}
    appended = append_members(body, members)
    assert parse_json_object(appended) == {**orjson.loads(body), **members}
    assert appended.startswith(body.rstrip()[:-1].rstrip()), "the client's bytes stay"
    assert append_members(body, {}) == body


@for_each(("body", "is_replaced"), [
    (b'{"model": "alias", "prompt": "a"}', True),
    (b'{"messages": [{"content": "a"}], "model":"alias"}', True),
    (b'{"messages": [{"content": "a"}], "model":"alias", "metadata": {"a": [[1]]}, "tools": [[{}]]}', False),
    (b'{"model": "first", "prompt": "a", "model": "alias"}', False),
    (b'{"prompt": "\\"model\\": \\"alias\\"", "model": "alias"}', True),
    (b'{"prompt": "a", "tools": [{"model": "no"}], "model": "alias"}', False),
])  # fmt: skip
def test_the_model_is_replaced_where_it_stands_alone(body: bytes, is_replaced: bool) -> None:
    """Servers that take a duplicate name for an error serve an alias, too."""
    appended = append_members(body, {"model": "m", "seed": 5})
    assert parse_json_object(appended) == {**orjson.loads(body), "model": "m", "seed": 5}
    assert (appended.count(b'"model"') == body.count(b'"model"')) == is_replaced
    assert parse_json_object(append_members(body, {"model": "m"}))["model"] == "m"


def test_delivered_tokens_are_kept_for_each_choice() -> None:
    delivered = DeliveredTokens(2)
    assert not delivered.has_progress
    for each in (tokens(0, 1, position=0), tokens(1, 7, 8, position=0), tokens(0, 2, position=1)):
        assert delivered.is_new(each)
        delivered.add(each)
    assert delivered.resume_field() == [[1, 2], [7, 8]]
    assert delivered.num_tokens == 4 and delivered.has_progress and not delivered.are_all_finished
    delivered.add(tokens(0, position=2, is_last=True))
    delivered.add(tokens(1, position=2, is_last=True))
    assert delivered.are_all_finished
    delivered.clear()
    assert delivered.resume_field() == [[], []] and not delivered.has_progress


def test_the_clients_own_resumed_tokens_come_first() -> None:
    delivered = DeliveredTokens(3, [(4, 5), (6,)])
    assert not delivered.has_progress, "the client has them from elsewhere"
    assert delivered.is_new(tokens(0, 9, position=2))
    delivered.add(tokens(0, 9, position=2))
    assert delivered.resume_field() == [[4, 5, 9], [6], []]
    delivered.clear()
    assert delivered.resume_field() == [[4, 5], [6], []]


def test_doubles_are_dropped() -> None:
    delivered = DeliveredTokens(2)
    delivered.add(tokens(0, 1, 2, 3, position=0))
    assert not delivered.is_new(tokens(0, 1, 2, position=0))
    assert not delivered.is_new(tokens(0, 3, position=2))
    delivered.add(tokens(0, 4, position=3, is_last=True))
    assert not delivered.is_new(tokens(0, position=4, is_last=True)), "a choice ends once"
    assert not delivered.is_new(tokens(0, 5, position=4))
    assert delivered.is_new(tokens(1, 5, position=0))


def test_a_choice_that_ends_without_a_token_is_progress() -> None:
    delivered = DeliveredTokens(1)
    delivered.add(tokens(0, is_last=True))
    assert delivered.has_progress


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (tokens(0, 9, position=3), r"goes on at token 3, 2 tokens were delivered"),
        (tokens(0, 2, 9, position=1), r"repeats tokens from 1 on, 2 tokens were delivered"),
        (tokens(0, 2, position=1, is_last=True), r"repeats tokens"),
        (tokens(0, 9, position=1), r"has other tokens from 1 on"),
        (tokens(1, 9, position=0), r"of choice 1, the request has 1 choices"),
    ],
)
def test_gaps_overlaps_and_other_tokens_are_errors(bad: Chunk, message: str) -> None:
    delivered = DeliveredTokens(1)
    delivered.add(tokens(0, 1, 2, position=0))
    with pytest.raises(BadChunk, match=message):
        delivered.is_new(bad)


def test_usage_is_delivered_once() -> None:
    delivered, usage = DeliveredTokens(1), Chunk(b"x", ChunkKind.USAGE)
    assert delivered.is_new(usage)
    delivered.add(usage)
    assert not delivered.is_new(usage)
    assert delivered.has_progress


def progress(index: int, token: int, logprobs: dict[str, Any] | None) -> Chunk:
    data = orjson.dumps({"index": index, "token_ids": [token], "logprobs": logprobs})
    (event,) = AttemptReader(1, ResponseMode.PROGRESS).push(b"event: progress\ndata: " + data + b"\n\n")
    return event.chunks[0]  # type: ignore[union-attr]


def test_the_logprobs_of_earlier_attempts_come_before_those_of_the_last_one() -> None:
    delivered = DeliveredTokens(2)
    for index, token in ((0, 1), (1, 2), (0, 3)):
        delivered.add(progress(index, token, {"content": [token], "refusal": None}))
    delivered.resume_field()
    delivered.add(progress(0, 4, {"content": [4], "refusal": None}))
    delivered.resume_field()
    delivered.add(progress(0, 5, {"content": [5], "refusal": None}))  # the last attempt reports it itself
    usage = {"prompt_tokens": 1}
    body = {"choices": [{"index": 0, "logprobs": {"content": [5, 6], "refusal": None}},
                        {"index": 1, "logprobs": {"content": [], "refusal": None}}], "usage": usage}  # fmt: skip
    merged = orjson.loads(delivered.merge_logprobs(orjson.dumps(body)))
    assert [choice["logprobs"]["content"] for choice in merged["choices"]] == [[1, 3, 4, 5, 6], [2]]
    assert merged["usage"] == usage


def test_the_parallel_lists_of_completions_are_joined_likewise() -> None:
    delivered = DeliveredTokens(1)
    delivered.add(
        progress(0, 1, {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [None], "text_offset": [0]})
    )
    delivered.resume_field()
    last = {"tokens": ["b"], "token_logprobs": [-2.0], "top_logprobs": [{}], "text_offset": [1]}
    merged = delivered.merge_logprobs(orjson.dumps({"choices": [{"index": 0, "logprobs": last}]}))
    assert orjson.loads(merged)["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": [None, {}], "text_offset": [0, 1]
    }  # fmt: skip


def test_a_body_without_earlier_logprobs_stays_byte_for_byte() -> None:
    delivered = DeliveredTokens(1)
    delivered.add(progress(0, 1, None))
    delivered.resume_field()
    assert delivered.merge_logprobs(b'{ "choices" : 1.0 }') == b'{ "choices" : 1.0 }'
    delivered.add(progress(0, 2, {"content": [2]}))
    assert delivered.merge_logprobs(b"{ }") == b"{ }", "these are of the last attempt"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"choices":[{"logprobs":{}}]}', b'{"choices":[{"index":5,"logprobs":{}}]}']
)
def test_a_whole_response_that_makes_no_sense_is_an_error(body: bytes) -> None:
    delivered = DeliveredTokens(1)
    delivered.add(progress(0, 1, {"content": [1]}))
    delivered.resume_field()
    with pytest.raises(BadChunk, match="no choices with logprobs"):
        delivered.merge_logprobs(body)


def test_a_real_chunk_is_new_and_then_a_double() -> None:
    delivered, text = DeliveredTokens(1), chunk(0, {"content": "a"}, ids=(5,))
    assert delivered.is_new(text)
    delivered.add(text)
    assert not delivered.is_new(text)
