"""ClientConnection counts events however they are cut, and rejects what is no complete response."""

import asyncio

import pytest

from router_overhead.client_connection import BadResponse, ClientConnection, request

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM = HEAD + b'f\r\ndata: {"a":1}\n\n\r\n' * 4 + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def exchange(pieces: list[bytes], num_requests: int = 1) -> list[tuple[int, int]]:
    """Send requests to a server that answers each with these pieces and then closes; return the counted events."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(num_requests):
            await reader.readuntil(b"}")
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
        writer.close()

    counted: list[tuple[int, int]] = []
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        connection = await ClientConnection.open(port, lambda number, num_events: counted.append((number, num_events)))
        for number in range(num_requests):
            await asyncio.wait_for(connection.send(number, b"{}"), 10)
        connection.close()
    return counted


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
def test_events_are_counted_however_they_are_cut(size: int) -> None:
    # Fed directly, because the system may join pieces that a socket gets.
    counted: list[int] = []
    connection = ClientConnection(lambda number, num_events: counted.append(num_events))
    for at in range(0, len(STREAM), size):
        connection.data_received(STREAM[at : at + size])
    assert sum(counted) == 5


def test_a_connection_takes_one_request_after_the_other() -> None:
    counted = asyncio.run(exchange([STREAM], 3))
    assert {number: sum(n for at, n in counted if at == number) for number, _ in counted} == {0: 5, 1: 5, 2: 5}


@pytest.mark.parametrize("pieces", [[b"content-length: 4\r\n\r\n", b"ab", b"cd"], [b"content-length: 0\r\n\r\n"]])
def test_a_response_with_a_content_length_ends(pieces: list[bytes]) -> None:
    assert asyncio.run(exchange([b"HTTP/1.1 200 OK\r\n", *pieces], 2)) == []


def test_events_of_a_body_with_a_content_length_are_counted() -> None:
    body = b"data: 1\n\ndata: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    assert sum(num_events for _, num_events in asyncio.run(exchange([head + body]))) == 2


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        (b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n", "status 503"),
        (STREAM[:-5], "before the end"),
        (b"", "before the end"),
    ],
)
def test_what_is_no_complete_response_is_an_error(piece: bytes, reason: str) -> None:
    with pytest.raises(BadResponse, match=reason):
        asyncio.run(exchange([piece]))


def test_a_request_has_its_number_and_the_length_of_its_body() -> None:
    head, _, body = request(12, 5, is_streamed=True).partition(b"\r\n\r\n")
    assert b'"content":"12 ' in body and b'"max_tokens":5' in body and b'"stream":true' in body
    assert f"content-length: {len(body)}".encode() in head
