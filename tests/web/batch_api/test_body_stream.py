"""BodyStream: pieces of any size give the same bytes; limits of size, time and lines hold."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chairlift.core.errors import BodyTimeout, BodyTooLarge, MalformedRequest
from chairlift.web.batch_api import body_stream
from chairlift.web.batch_api.body_stream import MAX_LINE_BYTES, MAX_LINES, BodyStream
from chairlift.web.body import ClientGone
from support_virtual_time import run_in_virtual_time


def stream_of(pieces: Sequence[bytes], *, is_cut: bool = False, pause: float = 0.0, **limits: Any) -> BodyStream:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": each, "more_body": True} for each in pieces]
    messages.append({"type": "http.disconnect"} if is_cut else {"type": "http.request", "body": b""})

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return messages.pop(0)

    return BodyStream(receive, **{"max_bytes": 1000, "max_line_bytes": 1000, "seconds": 5.0} | limits)


async def read_all(stream: BodyStream) -> bytes:
    body = b""
    while piece := await stream.read():
        body += piece
    return body


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_and_bytes_do_not_depend_on_the_pieces(size: int) -> None:
    body = b"one\r\ntwo\nrest"

    async def scenario() -> None:
        stream = stream_of([body[index : index + size] for index in range(0, len(body), size)])
        assert not stream.at_eof()
        assert [await stream.readline(), await stream.readline()] == [b"one\r\n", b"two\n"]
        first = await stream.read(1)
        stream.unread_data(first)
        rest = b""
        while piece := await stream.read(2):
            assert len(piece) <= 2
            rest += piece
        assert rest == b"rest" and await stream.readline() == b"" and stream.at_eof()
        assert await stream_of([b"no end"]).readline() == b"no end"
        assert await stream_of([b"all"]).read() == b"all"

    asyncio.run(scenario())


def test_limits_of_size_and_of_lines() -> None:
    async def scenario() -> None:
        stream = stream_of([b"x" * 600, b"x" * 401])
        await stream.read(600)
        with pytest.raises(BodyTooLarge, match="the body has 1001 bytes or more, the limit is 1000"):
            await stream.read(1)
        long_line = stream_of([b"x" * MAX_LINE_BYTES, b"xx\n"], max_bytes=10**6)
        with pytest.raises(MalformedRequest, match=f"a line of more than {MAX_LINE_BYTES} bytes"):
            await long_line.readline()
        with pytest.raises(MalformedRequest, match="a line of more than 3 bytes"):
            await stream_of([b"xxxxx"]).readline(max_line_length=3)

    asyncio.run(scenario())


class CountedBytes(bytes):
    """Bytes that count how many of them were copied."""

    num_copied = 0

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        CountedBytes.num_copied += len(result) if isinstance(result, bytes) else 0
        return result


def test_lines_are_bounded_and_cost_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of line ends used to be copied once for each of them, without a limit of their number."""

    async def lines_read(stream: BodyStream) -> int:
        num_lines = 0

        async def read() -> None:
            nonlocal num_lines
            while await stream.readline():
                num_lines += 1

        with pytest.raises(MalformedRequest, match="besides its file, which is the limit"):
            await read()
        return num_lines

    async def scenario() -> None:
        body = CountedBytes(b"\n" * 4_000_000)
        limits = {"max_bytes": 10**7, "max_line_bytes": 65_536}
        assert await lines_read(stream_of([body], **limits)) == MAX_LINES
        assert CountedBytes.num_copied <= MAX_LINES + 1, "what follows a line is not copied"
        monkeypatch.setattr(body_stream, "MAX_LINES", 10**9)
        assert await lines_read(stream_of([body], **limits)) == 65_536
        assert await lines_read(stream_of([b"x" * 999 + b"\n"] * 100, **limits)) == 65
        assert len(await read_all(stream_of([body], **limits))) == 4_000_000, "what is no line has no such limit"

    asyncio.run(scenario())


def test_a_client_that_leaves_or_sends_too_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with pytest.raises(ClientGone):
            await stream_of([], is_cut=True).read(1)
        with pytest.raises(BodyTimeout, match=r"did not arrive within 0\.4 s"):
            await read_all(stream_of([b"x"] * 100, pause=0.03, seconds=0.4))
        monkeypatch.setattr(body_stream, "TIMED_BYTES", 2)
        body = await read_all(stream_of([b"x"] * 20, pause=0.03, seconds=0.4))
        assert len(body) == 20, "a body that goes on arriving may take longer"

    run_in_virtual_time(scenario())
