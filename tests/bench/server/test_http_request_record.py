"""HttpRequestRecord: tokens and their times for any division of a stream, and the Outcome of every kind of end."""

import math

import pytest

from chairlift.bench.server.http_client import ExchangeEndKind
from chairlift.bench.server.http_request_record import TERMINAL, HttpRequestRecord, Outcome
from support_response_records import read
from support_scripted_server import event, text_chunk, usage

GOOD = b"".join([
    event(text_chunk("", 7)), event(text_chunk("two", 8, 9)), event({"choices": [{"text": "", "token_ids": []}]}),
    event(usage(3)), event(b"[DONE]"),
])  # fmt: skip


def test_tokens_are_counted_by_their_ids_and_stamped_when_they_came() -> None:
    record = read(*(piece + b"\n\n" for piece in GOOD.split(b"\n\n")[:-1]))
    assert (record.outcome, record.status, record.ended, record.code) == (Outcome.OK, 200, 10.0, "")
    assert list(record.arrivals) == [1.0, 2.0] and list(record.weights) == [1, 2] and record.has_ids
    assert (record.output_tokens, record.prompt_tokens, record.usage_tokens) == (3, 3, 3)
    assert record.ttft == 0.5 and record.tpot == 0.5 and not record.is_miscounted


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_same_is_read_whatever_its_pieces_are(end: bytes) -> None:
    stream = GOOD.replace(b"\n", end)
    for place in range(1, len(stream)):
        record = read(stream[:place], stream[place:])
        assert (record.outcome, list(record.weights), record.usage_tokens) == (Outcome.OK, [1, 2], 3)


@pytest.mark.parametrize(("how", "outcome"), [
    (ExchangeEndKind.COMPLETE, Outcome.UNFINISHED), (ExchangeEndKind.CONNECTION_LOST, Outcome.CONNECTION_LOST),
    (ExchangeEndKind.TIMEOUT, Outcome.TIMEOUT),
    (ExchangeEndKind.INVALID_RESPONSE, Outcome.INVALID_RESPONSE), (ExchangeEndKind.UNREACHABLE, Outcome.UNREACHABLE),
])  # fmt: skip
def test_a_stream_without_its_end_is_none(how: ExchangeEndKind, outcome: Outcome) -> None:
    record = read(event(text_chunk("x", 1)), how=how)
    assert record.outcome is outcome and record.code == outcome.value and outcome not in TERMINAL


def test_after_done_nothing_can_be_missing_but_time_can() -> None:
    assert read(GOOD, how=ExchangeEndKind.CONNECTION_LOST).outcome is Outcome.OK
    assert read(GOOD, how=ExchangeEndKind.TIMEOUT).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(("status", "outcome", "body", "code"), [
    (429, Outcome.REFUSED, b'{"error": {"code": "overloaded", "type": "x"}}', "overloaded"),
    (503, Outcome.REFUSED, b'{"error": {"code": null, "type": "starting"}}', "starting"),
    (500, Outcome.BAD_STATUS, b"<html>", "http_500"), (400, Outcome.BAD_STATUS, b'{"error": "text"}', "http_400"),
])  # fmt: skip
def test_other_responses_are_recorded_by_status_and_code(status: int, outcome: Outcome, body: bytes, code: str) -> None:
    record = read(body[:5], body[5:], status=status)
    assert (record.outcome, record.code, record.status) == (outcome, code, status) and outcome in TERMINAL


def test_what_is_compressed_is_refused() -> None:
    with pytest.raises(ValueError, match="the request accepts only identity"):
        read(b"", headers=[(b"content-encoding", b"gzip")])
    assert read(GOOD, headers=[(b"content-encoding", b"Identity")]).outcome is Outcome.OK


def test_what_is_not_over_is_interrupted() -> None:
    record = HttpRequestRecord(due=1.0, sent=1.0)
    assert record.outcome is Outcome.INTERRUPTED and math.isnan(record.ended)
    assert record.ttft is None and record.tpot is None and record.output_tokens == 0
