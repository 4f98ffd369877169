"""FaultyProxy: passes TCP connections on to a port, and stalls, cuts or resets them on demand."""

import asyncio
import socket
import struct
from collections.abc import Callable

READ_BYTES = 65_536


class FaultyProxy:
    """A TCP proxy on 127.0.0.1. New connections are passed on as the old ones are.

    Attributes:
        url: its address.
        num_connections: connections since the start.
    """

    def __init__(self, target_port: int) -> None:
        """Create a proxy before a port; `start` opens it."""
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._passes = asyncio.Event()
        self._passes.set()
        self._bytes_left: int | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.num_connections = 0

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port and every connection."""
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stall(self) -> None:
        """Pass nothing on in either direction, and keep every connection open."""
        self._passes.clear()

    def resume(self) -> None:
        """Pass on what has stalled, and what comes, again."""
        self._passes.set()

    def cut_after(self, num_bytes: int) -> None:
        """Close every connection, once, when so many more bytes have come from the target."""
        self._bytes_left = num_bytes

    def reset(self) -> None:
        """Reset every connection on the client's side."""
        for connection in list(self._connections):
            connection.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        try:
            await self._serve(reader, writer)
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, target_writer)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._pump(reader, target_writer, _uncounted), self._pump(target_reader, writer, self._count)
            )
        finally:
            self._connections.discard(connection)
            target_writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[bytes], bytes]
    ) -> None:
        try:
            while received := await reader.read(READ_BYTES):
                await self._passes.wait()
                writer.write(count(received))
                await writer.drain()
        finally:
            writer.close()

    def _count(self, received: bytes) -> bytes:
        """Return what may still be passed on; close everything behind it."""
        if self._bytes_left is None:
            return received
        passed = received[: self._bytes_left]
        self._bytes_left -= len(passed)
        if not self._bytes_left:
            self._bytes_left = None
            asyncio.get_running_loop().call_soon(self._close_all)
        return passed

    def _close_all(self) -> None:
        for connection in list(self._connections):
            connection.close()


class _Connection:
    """One connection of a client with that to the target."""

    def __init__(self, client: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self._client, self._target = client, target

    def close(self) -> None:
        self._client.close()
        self._target.close()

    def reset(self) -> None:
        sock: socket.socket | None = self._client.get_extra_info("socket")
        if sock is not None and sock.fileno() != -1:  # a closed connection keeps its socket object
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.transport.abort()
        self._target.transport.abort()


def _uncounted(received: bytes) -> bytes:
    return received
