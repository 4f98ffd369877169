"""read: the record of a response that comes in pieces."""

from collections.abc import Iterable

from chairlift.bench.server.http_client import ExchangeEnd, ExchangeEndKind
from chairlift.bench.server.http_request_record import HttpRequestRecord
from chairlift.bench.server.response_recorder import ResponseRecorder


def read(
    *pieces: bytes,
    how: ExchangeEndKind = ExchangeEndKind.COMPLETE,
    status: int = 200,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> HttpRequestRecord:
    """Record a response in chunks at 11, 12, 13 .. of a phase that began at 10; it was due at 0.5."""
    record = HttpRequestRecord(due=0.5, sent=0.75)
    answer = ResponseRecorder(record, 10.0)
    if status:
        answer.head(status, list(headers))
    for number, piece in enumerate(pieces, start=1):
        answer.body(piece, 10.0 + number)
    answer.end(ExchangeEnd(how, 20.0, "" if how is ExchangeEndKind.COMPLETE else "some reason"))
    return record
