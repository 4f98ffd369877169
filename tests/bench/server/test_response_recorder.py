"""ResponseRecorder: tokens and their times, usage, errors and outcome, for any division into chunks."""

import pytest

from chairlift.bench.server.http_client import ExchangeEndKind
from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.bench.server.response_recorder import MAX_ERROR_BYTES, ResponseRecorder, error_message_of
from support_response_records import read
from support_scripted_server import event, text_chunk, usage

ERROR = b'event: error\ndata: {"error": {"message": "it is gone", "type": "server_error", "code": "engine_dead"}}\n\n'


def test_without_ids_chunks_with_text_count_as_tokens() -> None:
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"reasoning_content": "b"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        usage(5),
    ]  # fmt: skip
    record = read(*map(event, chunks), event(b"[DONE]"))
    assert list(record.arrivals) == [2.0, 3.0] and not record.has_ids
    assert record.output_tokens == 5 and not record.is_miscounted and record.tpot == 0.25


def test_no_text_looks_like_a_mark() -> None:
    sly = text_chunk('"token_ids":[1,2,3],"usage":{"completion_tokens":9},"text":"x', 4)
    record = read(event(sly), event(b"[DONE]"))
    assert list(record.weights) == [1] and record.usage_tokens is None
    empty = {"choices": [{"text": "", "name": '"text":"x"'}]}
    assert list(read(event(empty), event(b"[DONE]")).arrivals) == []


def test_a_prompts_ids_are_no_output() -> None:
    assert list(read(event({"choices": [{"text": "", "prompt_token_ids": [1, 2]}]}), event(b"[DONE]")).weights) == []


def test_a_server_that_counts_otherwise_is_seen() -> None:
    record = read(event(text_chunk("x", 1)), event(usage(2)), event(b"[DONE]"))
    assert record.is_miscounted and record.output_tokens == 2


def test_an_error_in_a_stream_is_an_end_and_no_success() -> None:
    for how in (ExchangeEndKind.COMPLETE, ExchangeEndKind.CONNECTION_LOST):
        record = read(event(text_chunk("x", 1)), ERROR, how=how)
        assert (record.outcome, record.code) == (Outcome.ERROR_EVENT, "engine_dead")
    plain = ERROR.removeprefix(b"event: error\n").replace(b'{"error": ', b'{"error":')
    assert read(plain).outcome is Outcome.ERROR_EVENT
    assert read(b"event: error\ndata: no JSON\n\n").code == "error"


@pytest.mark.parametrize(("headers", "seconds"), [
    ([(b"retry-after", b"3")], 3.0), ([(b"retry-after", b"3"), (b"retry-after-ms", b"2500")], 2.5),
    ([(b"retry-after", b"Sun, 06 Nov 1994 08:49:37 GMT")], 0.0), ([], None), ([(b"retry-after", b"soon")], None),
])  # fmt: skip
def test_when_to_come_again(headers: list[tuple[bytes, bytes]], seconds: float | None) -> None:
    assert read(b"{}", status=429, headers=headers).retry_after == seconds


def test_an_error_page_without_end_is_not_kept() -> None:
    answer = ResponseRecorder(HttpRequestRecord(due=0.0, sent=0.0), 0.0)
    answer.head(500, [])
    for _ in range(100):
        answer.body(b"x" * 10_000, 1.0)
    assert len(answer._body) < MAX_ERROR_BYTES + 10_000


@pytest.mark.parametrize(("body", "said"), [
    (b'{"error": {"message": "no such model"}}', "no such model"), (b"plain words\n", "plain words"),
    (b"[1]", "[1]"), (b"", "empty response"),
])  # fmt: skip
def test_what_a_server_says(body: bytes, said: str) -> None:
    assert error_message_of(body) == said
