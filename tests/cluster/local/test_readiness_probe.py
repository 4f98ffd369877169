"""is_serving: only an answer with status 200 in time counts."""

import asyncio

from chairlift.cluster.local.readiness_probe import is_serving
from support_shares import for_each


@for_each(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True), (b"HTTP/1.0 200\r\n", True), (b"HTTP/1.1 503 Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 2000 OK\r\n", False), (b"SSH-2.0 200\r\n", False), (b"", False), (b"x" * 10_000, False),
        (None, False),
    ],
)  # fmt: skip
def test_only_status_200_counts(answer: bytes | None, expected: bool) -> None:
    requests = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readline())
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async def scenario() -> bool:
        async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await is_serving("127.0.0.1", port, "/readyz", 0.05 if answer is None else 10)

    assert asyncio.run(scenario()) is expected
    assert requests == [b"GET /readyz HTTP/1.1\r\n"]


def test_a_port_without_a_server_does_not_serve() -> None:
    async def scenario() -> bool:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
        return await is_serving("127.0.0.1", port, "/readyz", 10)

    assert asyncio.run(scenario()) is False
