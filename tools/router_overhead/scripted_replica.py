"""ScriptedReplicas: several replicas in the process of the load generator, which stream tokens as the load demands.

The first token of a stream is sent when the request arrives. The others follow in one of two ways:

    paced            each step of a replica sends one token to each of its streams, as an engine does; the steps of the
                     replicas are evenly spread
    one at a time    a stream's next token is sent when the client has received the previous one (`send_next`), so that
                     no proxy can merge several tokens into one write
"""

import asyncio
import re
import secrets
from itertools import count
from typing import Self, cast

import orjson

from router_overhead.scripted_responses import VERSION, ResponseForm, ScriptedResponse, load_header, load_report, models

GENERATION_PATHS = (b"/v1/chat/completions", b"/v1/completions")
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
REQUEST_LINE = re.compile(rb"[A-Z]+ /\S* HTTP/1\.1\r\n")
STREAM_HEAD = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    "x-accel-buffering: no\r\nx-request-id: {id}\r\n{load}transfer-encoding: chunked\r\n\r\n"
)
JSON_HEAD = (
    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nx-request-id: {id}\r\n{load}"
    "content-length: {length}\r\n\r\n"
)


class ScriptedReplicas:
    """All replicas, the pace of their streams, and the open streams by the number of their request.

    Attributes:
        seconds_per_step: time between two tokens of a stream; None sends one at a time.
        ends_streams: whether each stream ends with its next token, so that a measurement can stop.
        ports: the replicas' ports.
    """

    def __init__(self, num_replicas: int) -> None:
        """Create replicas that do not listen yet; `async with` starts and stops them."""
        self.seconds_per_step: float | None = None
        self.ends_streams = False
        self.ports: list[int] = []
        self.streams: dict[int, tuple[_Connection, ScriptedResponse]] = {}
        self.request_numbers = count()
        self._replicas = [_Replica(self) for _ in range(num_replicas)]
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for replica in self._replicas:
            server = await loop.create_server(
                lambda replica=replica: _Connection(replica), "127.0.0.1", 0, backlog=1024  # type: ignore[misc]
            )  # fmt: skip
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self.start_steps(None)
        for server in self._servers:
            server.close()

    def start_steps(self, seconds_per_step: float | None) -> None:
        """Send tokens in steps of this duration from now on, or one at a time."""
        self.seconds_per_step, self.ends_streams = seconds_per_step, False
        for at, replica in enumerate(self._replicas):
            replica.start_steps(seconds_per_step, at / len(self._replicas))

    def send_next(self, number: int) -> None:
        """Send the next token of the stream of a request, if it is open."""
        stream = self.streams.get(number)
        if stream is not None:
            stream[0].replica.send_token(number, *stream)

    def end_streams(self) -> None:
        """End each open stream with its next token, now, and each later one with its first."""
        self.ends_streams = True
        for number, stream in [*self.streams.items()]:
            stream[0].replica.send_token(number, *stream)


class _Replica:
    """One replica: its open streams, and the steps that feed them."""

    def __init__(self, fleet: ScriptedReplicas) -> None:
        self.fleet = fleet
        self.instance_id = f"{secrets.token_hex(8)}.0"
        self.streams: dict[int, tuple[_Connection, ScriptedResponse]] = {}
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start_steps(self, seconds_per_step: float | None, phase: float) -> None:
        """Make the first step after this share of a step; None ends the steps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds_per_step is not None:
            loop = asyncio.get_running_loop()
            self._due = loop.time() + phase * seconds_per_step
            self._timer = loop.call_at(self._due, self._step, seconds_per_step)

    def _step(self, seconds_per_step: float) -> None:
        loop = asyncio.get_running_loop()
        for number, stream in [*self.streams.items()]:
            if not stream[0].is_paused:
                self.send_token(number, *stream)
        self._due = max(self._due + seconds_per_step, loop.time())
        self._timer = loop.call_at(self._due, self._step, seconds_per_step)

    def open_stream(self, number: int, connection: "_Connection", response: ScriptedResponse) -> None:
        self.streams[number] = self.fleet.streams[number] = (connection, response)

    def send_token(self, number: int, connection: "_Connection", response: ScriptedResponse) -> None:
        if self.fleet.ends_streams:
            response.num_tokens = response.num_sent + 1
        connection.transport.write(response.next_event())
        if response.is_complete:
            self.close_stream(number)

    def close_stream(self, number: int) -> None:
        self.streams.pop(number, None)
        self.fleet.streams.pop(number, None)


class _Connection(asyncio.Protocol):
    """One connection: answers requests one after the other."""

    transport: asyncio.Transport

    def __init__(self, replica: _Replica) -> None:
        self.replica = replica
        self._received = b""
        self._number = 0
        self.is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.replica.close_stream(self._number)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n") + 4) >= 4:
            head = self._received[:end]
            if not REQUEST_LINE.match(head):  # another protocol, which some proxies try first
                self.transport.abort()
                return
            length = CONTENT_LENGTH.search(head)
            size = end + (int(length[1]) if length else 0)
            if len(self._received) < size:
                return
            body, self._received = self._received[end:size], self._received[size:]
            self._respond(head, body)

    def _respond(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if path in GENERATION_PATHS:
            self._generate(path, head.lower(), body)
        elif path == b"/load":
            self._send_json(load_report(self.replica.instance_id, len(self.replica.streams)))
        elif path == b"/v1/models":
            self._send_json(models())
        elif path in (b"/readyz", b"/health"):
            self._send_json({"state": "ready"})
        elif path == b"/version":
            self._send_json({"version": VERSION})
        else:
            self._send_json({"error": {"message": "no such route"}}, "404 Not Found")

    def _generate(self, path: bytes, head: bytes, body: bytes) -> None:
        replica = self.replica
        form = ResponseForm.of(path, body, reports_progress=b"\r\nx-chairlift-progress: 1\r\n" in head)
        request_id = f"req-{next(replica.fleet.request_numbers):024x}"
        response = ScriptedResponse(form, request_id)
        load = ""
        if b"\r\nx-chairlift-router: 1\r\n" in head:
            load = load_header(replica.instance_id, len(replica.streams))
        if not form.is_streamed and not form.reports_progress:
            self._send(response.whole_body(), "200 OK", request_id, load)
            return
        begin = STREAM_HEAD.format(id=request_id, load=load).encode()
        if not form.is_streamed:
            self.transport.write(begin + response.progress_body())
            return
        if replica.fleet.ends_streams:
            response.num_tokens = 1
        self.transport.write(begin + response.next_event())
        if not response.is_complete:
            self._number = form.number
            replica.open_stream(form.number, self, response)

    def _send_json(self, value: object, status: str = "200 OK") -> None:
        self._send(orjson.dumps(value), status, "req-0", "")

    def _send(self, body: bytes, status: str, request_id: str, load: str) -> None:
        head = JSON_HEAD.format(status=status, id=request_id, load=load, length=len(body))
        self.transport.write(head.encode() + body)
