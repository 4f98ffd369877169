"""parse_chunk, ChunkRewriter: chunks are read as JSON would be, and lose only what the client did not ask for."""

import time

import orjson
import pytest

from chairlift.router.attempts.chunks import BadChunk, Chunk, ChunkKind, ChunkRewriter, parse_chunk
from support_attempts import chunk, chunk_event
from support_shares import for_each

TRICKY = '}],"usage":null}\\",\\"token_ids\\":[1],"position":2,"finish_reason":"stop","choices":[{"index":9,'
COUNTS = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
LOGPROBS = {"content": [{"token": TRICKY, "logprob": -1.5}], "refusal": None}


@for_each(("with_usage", "usage"), [(False, None), (True, None), (True, COUNTS)])
@for_each("logprobs", [None, LOGPROBS])
@for_each("reason", [None, "stop", "tool_calls"])
@for_each("ids", [None, (), (5,), (5, 6, 77)])
def test_a_chunk_is_cut_as_json_would_parse_it(
    ids: tuple[int, ...] | None, reason: str | None, logprobs: object, with_usage: bool, usage: object
) -> None:
    options = {"reason": reason, "logprobs": logprobs, "with_usage": with_usage, "usage": usage}
    payload = chunk_event(3, {"content": TRICKY}, ids=ids, position=40, **options)
    parsed = parse_chunk(payload)
    position = None if ids is None else 40
    assert parsed == Chunk(payload, ChunkKind.CHOICE, 3, ids or (), position, reason is not None)
    plain = chunk_event(3, {"content": TRICKY}, **options)
    assert ChunkRewriter(keeps_token_ids=False).rewrite(parsed) == plain
    assert ChunkRewriter(keeps_token_ids=True).rewrite(parsed) == payload


@pytest.mark.parametrize("stop_reason", ["END", 'a"b\\', TRICKY, 151_643])
def test_the_stop_reason_of_a_chunk_stays(stop_reason: str | int) -> None:
    text = chunk_event(0, {"content": "a"}, reason="stop", stop_reason=stop_reason, with_usage=True)
    full = chunk_event(
        0, {"content": "a"}, reason="stop", stop_reason=stop_reason, with_usage=True, ids=(5, 6), position=7
    )
    parsed = parse_chunk(full)
    assert parsed == Chunk(full, ChunkKind.CHOICE, 0, (5, 6), 7, True)
    assert ChunkRewriter(keeps_token_ids=False).rewrite(parsed) == text
    assert parse_chunk(text) == Chunk(text, ChunkKind.CHOICE, 0, (), None, True)


def test_a_completion_chunk_is_cut_likewise() -> None:
    head = b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","system_fingerprint":"c",'
    full = (
        head + b'"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null,"token_ids":[1],"position":0}]}'
    )
    empty = full.replace(b'"text":"a"', b'"text":""') + b"\n\n"
    rewriter = ChunkRewriter(keeps_token_ids=False)
    assert (
        rewriter.rewrite(parse_chunk(full + b"\n\n")) == full.replace(b',"token_ids":[1],"position":0', b"") + b"\n\n"
    )
    assert rewriter.rewrite(parse_chunk(empty)) == b""
    last = empty.replace(b'null,"token', b'"stop","token')
    assert b'"text":""' in rewriter.rewrite(parse_chunk(last))


@pytest.mark.parametrize(
    ("delta", "fields", "is_sent"),
    [
        ({}, {}, False),
        ({}, {"reason": "stop"}, True),
        ({}, {"logprobs": LOGPROBS}, True),
        ({"content": ""}, {}, True),
    ],
)
def test_a_chunk_that_only_carries_token_ids_is_not_sent(
    delta: dict[str, str], fields: dict[str, object], is_sent: bool
) -> None:
    parsed = chunk(0, delta, ids=(5,), **fields)
    assert ChunkRewriter(keeps_token_ids=False).rewrite(parsed) == (chunk_event(0, delta, **fields) if is_sent else b"")
    assert ChunkRewriter(keeps_token_ids=True).rewrite(parsed) == parsed.payload


def test_the_head_of_the_first_chunk_stays() -> None:
    rewriter = ChunkRewriter(keeps_token_ids=False)
    assert rewriter.rewrite(chunk(0, {}, ids=(4,), created=5)) == b"", "counts although it is not sent"
    for created in (5, 6, 7):
        text = chunk(0, {"content": "a"}, ids=(5,), created=created)
        assert rewriter.rewrite(text) == chunk_event(0, {"content": "a"}, created=5)


def test_every_chunk_has_the_name_of_the_model_that_the_client_used() -> None:
    rewriter = ChunkRewriter(keeps_token_ids=False, model='al"ias')
    usage = chunk_event(0, {}).partition(b'"choices":')[0] + b'"choices":[],"usage":{"completion_tokens":3}}\n\n'
    chunks = [*(chunk(0, {"content": "a"}, ids=(5,), position=i) for i in range(2)), parse_chunk(usage)]
    sent = [orjson.loads(rewriter.rewrite(each)[6:]) for each in chunks]
    assert [each["model"] for each in sent] == ['al"ias'] * 3
    assert [len(each["choices"]) for each in sent] == [1, 1, 0] and "token_ids" not in sent[0]["choices"][0]


def test_a_usage_chunk_is_no_choice_and_keeps_its_counts() -> None:
    def usage(created: int) -> bytes:
        head = chunk_event(0, {}, created=created).partition(b'"choices":')[0]
        return head + b'"choices":[],"usage":{"completion_tokens":3}}\n\n'

    parsed = parse_chunk(usage(2))
    assert parsed == Chunk(usage(2), ChunkKind.USAGE)
    rewriter = ChunkRewriter(keeps_token_ids=False)
    rewriter.rewrite(chunk(0, {"content": "a"}, ids=(5,), created=1))
    assert rewriter.rewrite(parsed) == usage(1)


@pytest.mark.parametrize("keeps_ids", [False, True])
def test_a_chunk_with_its_members_in_another_order_is_parsed(keeps_ids: bool) -> None:
    def event(choice: dict[str, object]) -> bytes:
        return b"data: " + orjson.dumps({"id": "1", "choices": [choice], "usage": None}) + b"\n\n"

    choice = {"token_ids": [5, 6], "position": 4, "index": 2, "finish_reason": None, "logprobs": None}
    parsed = parse_chunk(event(choice | {"delta": {"content": "a"}}))
    assert (parsed.choice_index, parsed.token_ids, parsed.position, parsed.is_last) == (2, (5, 6), 4, False)
    rewritten = ChunkRewriter(keeps_token_ids=keeps_ids).rewrite(parsed)
    plain = {"index": 2, "finish_reason": None, "logprobs": None, "delta": {"content": "a"}}
    assert rewritten == (parsed.payload if keeps_ids else event(plain))
    empty = ChunkRewriter(keeps_token_ids=False).rewrite(parse_chunk(event(choice | {"delta": {}})))
    assert empty == b""
    last = parse_chunk(event(choice | {"delta": {}, "finish_reason": "stop"}))
    assert last.is_last
    assert ChunkRewriter(keeps_token_ids=False).rewrite(last) != b""
    unfinished = parse_chunk(event({"index": 0, "delta": {"content": "a"}, "token_ids": [5], "position": 0}))
    expected = event({"index": 0, "delta": {"content": "a"}})
    assert ChunkRewriter(keeps_token_ids=False).rewrite(unfinished) == expected


@for_each(
    "payload",
    [
        b"data: {}\n\n",
        b'data: {"id":1,"choices":[{"delta":{}}]}\n\n',
        b'data: {"id":1,"choices":[1]}\n\n',
        b'data: {"id":1,"choices":[{"index":0,"token_ids":[1]}]}\n\n',
        b'data: {"id":1,"choices":[{"index":0,"token_ids":["a"],"position":0}]}\n\n',
        b'data: {"id":1,"choices":[{"index":0,"token_ids":[1.5],"position":0}]}\n\n',
        b'data: {"id":1,"choices":[{"index":0,"token_ids":[true],"position":0}]}\n\n',
        b'data: {"id":1,"choices":[{"index":-1,"token_ids":[1],"position":0}]}\n\n',
        b'data: {"id":1,"choices":[{"index":0,"delta":{},"finish_reason":null,"token_ids":[1,,2],"position":0}]}\n\n',
        b'data: {"id":1,"choices":[{"index":0,"a":1,"finish_reason":null,"token_ids":[4294967296],"position":0}]}\n\n',
        b'data: {"id":1,"choices":[{"index":0},{"index":1}]}\n\n',
        b'data: {"id":1,"choices":[{"ind',
    ],
)
def test_a_chunk_that_makes_no_sense_is_an_error(payload: bytes) -> None:
    with pytest.raises(BadChunk, match="chunk"):
        parse_chunk(payload)


def test_a_chunk_of_another_server_passes_as_it_is() -> None:
    assert ChunkRewriter(keeps_token_ids=False).rewrite(Chunk(b"data: x\r\n\r\n")) == b"data: x\r\n\r\n"


def test_a_chunk_costs_microseconds() -> None:
    payload = chunk_event(0, {"content": "token"}, ids=(1234,), position=1000)
    rewriter = ChunkRewriter(keeps_token_ids=False)
    best = 1.0
    for _ in range(5):
        started_at = time.perf_counter()
        for _ in range(1000):
            rewriter.rewrite(parse_chunk(payload))
        best = min(best, (time.perf_counter() - started_at) / 1000)
    assert best < 50e-6, f"{best * 1e6:.1f} us a chunk; 10,000 chunks a second need less than 100 us in all"
