"""bounded_http_protocol.py: the early check rejects a request by its header block, or admits it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import Overloaded
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController, AdmissionLimits, Permit
from chairlift.web.bounded_http_protocol import SMALL_BODY_BYTES, Rejection
from chairlift.web.request_start_throttle import STARTS_PER_ITERATION
from support_http import CHUNKED, GET, SHORT_TIMEOUT, TIMEOUT_SECONDS, ListeningServer, RawClient, run_scenario

MESSAGE = "server overloaded"
POST = b"POST /%s HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
CONNECTION_CLOSE = b"POST /task HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
HTTP_1_0 = b"POST /task HTTP/1.0\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"


class RejectingCheck:
    """An early check that rejects all requests to /task, and records all requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, dict[bytes, bytes]]] = []
        self.records: list[AccessRecord] = []
        self.headers: tuple[tuple[bytes, bytes], ...] = ()

    def __call__(self, target: bytes, headers: list[tuple[bytes, bytes]], server: object) -> Rejection | None:
        self.requests.append((target, dict(headers)))
        if target != b"/task":
            return None
        return Rejection(Overloaded(MESSAGE, retry_after=2.5), "/tasks/{id}", "tenant-1", self.headers)


def run_with_rejection(
    scenario: Callable[[ListeningServer], Awaitable[None]], **options: object
) -> tuple[list[str], RejectingCheck]:
    """Run a scenario with a RejectingCheck.

    Returns the paths that reached the application, and the check.
    """
    check = RejectingCheck()
    app = run_scenario(scenario, early_check=check, log_access=check.records.append, **options)  # type: ignore[arg-type]
    return app.paths, check


def test_who_is_turned_away_is_answered_and_may_ask_again_on_the_same_connection() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        for _ in range(3):
            response = await client.request(POST % b"task")
            assert response.status == 429
            assert response.headers["retry-after"] == "3" and response.headers["retry-after-ms"] == "2500"
            assert response.headers["content-type"] == "application/json" and "connection" not in response.headers
            error = response.object["error"]
            assert (error["message"], error["code"], error["type"]) == (MESSAGE, "overloaded", "rate_limit_error")
        assert (await client.request(POST % b"other")).object["body"] == "hello"

    paths, check = run_with_rejection(scenario)
    assert paths == ["/other"] and len(check.requests) == 4
    assert [(each.route, each.status, each.code, each.tenant, each.was_submitted) for each in check.records] == [
        ("/tasks/{id}", 429, "overloaded", "tenant-1", False)
    ] * 3


def test_the_answer_has_the_headers_of_the_rejection() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        for number in range(3):
            check.headers = ((b"x-load", b"%d" % number),) if number else ()
            response = await client.request(POST % b"task")
            assert response.status == 429 and response.headers.get("x-load") == (str(number) if number else None)

    check = RejectingCheck()
    run_scenario(scenario, early_check=check, log_access=check.records.append)


def test_the_answer_has_the_requests_own_id_or_a_new_one() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        request = (POST % b"task").replace(b"host: x", b"host: x\r\nX-Request-Id: mine-1")
        assert (await client.request(request)).headers["x-request-id"] == "mine-1"
        assert (await client.request(POST % b"task")).headers["x-request-id"].startswith("req-")

    _, check = run_with_rejection(scenario)
    assert check.records[0].request_id == "mine-1"


@pytest.mark.parametrize("size", [1, 7, 40])
def test_the_answer_does_not_wait_for_the_body_which_is_thrown_away(size: int) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        head, _, body = (POST % b"task").partition(b"\r\n\r\n")
        await client.send(*(head[at : at + size] for at in range(0, len(head), size)), b"\r\n\r\n")
        assert (await client.read_response()).status == 429
        await client.send(body[:2], body[2:], GET % b"next")
        assert (await client.read_response()).object["path"] == "/next"

    assert run_with_rejection(scenario)[0] == ["/next"]


def test_many_in_one_piece_are_all_answered_in_order() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send((POST % b"task") * 20 + POST % b"a" + (POST % b"task") + GET % b"b")
        records = [(await client.read_response()).status for _ in range(21)]
        assert records == [429] * 20 + [200]
        rest = [await client.read_response() for _ in range(2)]
        assert [each.object.get("path") for each in rest] == ["/task", "/b"], "a queued request is not rejected early"

    assert run_with_rejection(scenario)[0] == ["/a", "/task", "/b"]


@pytest.mark.parametrize("data", [CONNECTION_CLOSE, HTTP_1_0], ids=["close", "HTTP/1.0"])
def test_the_connection_ends_where_the_client_wants_it_or_knows_no_other_way(data: bytes) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        response = await client.request(data)
        assert (response.status, response.headers["connection"]) == (429, "close")
        assert await client.read_rest() == b""

    assert run_with_rejection(scenario)[0] == []


class PermittingCheck:
    """An early check that gives permits while fewer than `max_waiting` requests wait."""

    def __init__(self, max_waiting: int) -> None:
        self.admission = AdmissionController(AdmissionLimits(max_waiting_requests=max_waiting), FakeClock())
        self.requests = 0

    def __call__(
        self, target: bytes, headers: list[tuple[bytes, bytes]], server: object
    ) -> Callable[[], Permit | None]:
        return self.admit

    def admit(self) -> Permit | None:
        self.requests += 1
        return (
            self.admission.admit(0)
            if self.admission.waiting_requests < self.admission._limits.max_waiting_requests
            else None
        )


@pytest.mark.parametrize("count", [1, 3 * STARTS_PER_ITERATION])
def test_who_comes_as_a_whole_is_let_in_with_a_permit_and_all_are_answered_in_order(count: int) -> None:
    async def scenario(server: ListeningServer) -> None:
        clients = [await server.connect() for _ in range(count)]
        for number, client in enumerate(clients):
            client.writer.write(POST % b"%d" % number)
        for number, client in enumerate(clients):
            assert (await client.read_response()).object["path"] == f"/{number}"
            assert (await client.request(GET % b"again")).object["path"] == "/again"

    check = PermittingCheck(1000)
    app = run_scenario(scenario, early_check=check)
    permits = [permit for path, permit in zip(app.paths, app.permits, strict=True) if path != "/again"]
    assert len(permits) == len({id(permit) for permit in permits}) == count and None not in permits
    assert check.requests == count and set(app.permits[app.paths.index("/again") :]) - {None} <= set(permits)


def test_who_comes_in_pieces_or_finds_no_room_any_more_is_the_applications() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send((POST % b"slow")[:-2], b"lo", pause=0.05)
        assert (await client.read_response()).object["body"] == "hello"
        for path in (b"first", b"second"):
            assert (await client.request(POST % path)).object["body"] == "hello"

    check = PermittingCheck(1)
    app = run_scenario(scenario, early_check=check)
    assert app.paths == ["/slow", "/first", "/second"] and check.requests == 2
    assert [permit is None for permit in app.permits] == [True, False, True]


def test_what_is_no_http_behind_half_a_request_ends_it_without_a_permit() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(CHUNKED + b"5\r\nhello\r\nzz\r\n")
        assert (await client.read_response()).status == 400

    check = PermittingCheck(1)
    run_scenario(scenario, early_check=check)
    assert check.requests == 0


@pytest.mark.parametrize("data", [CONNECTION_CLOSE, HTTP_1_0], ids=["close", "HTTP/1.0"])
def test_a_connection_that_ends_waits_for_the_body_whose_arrival_would_reset_it(data: bytes) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        head, _, body = data.partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n", pause=0.05)
        await client.send(body[:2], body[2:], pause=0.02)
        assert (await client.read_response()).status == 429
        assert await client.read_rest() == b""

    assert run_with_rejection(scenario)[0] == []


def test_nothing_behind_an_answer_that_ends_the_connection_is_done() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        data = HTTP_1_0.replace(b"host: x", b"host: x\r\nconnection: keep-alive")
        await client.send(data + POST % b"other" + POST % b"task")
        assert (await client.read_response()).headers["connection"] == "close"
        assert await client.read_rest() == b""

    assert run_with_rejection(scenario)[0] == []


LARGE = b"POST /task HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (SMALL_BODY_BYTES + 1)
EXPECT_CONTINUE = b"POST /task HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    "data",
    [
        LARGE + b"x" * (SMALL_BODY_BYTES + 1), EXPECT_CONTINUE, CHUNKED.replace(b"/a", b"/task") + b"0\r\n\r\n",
        GET % b"task", (POST % b"task").replace(b"POST", b"PUT"),
    ],
    ids=["large", "expects", "chunked", "GET", "PUT"],
)  # fmt: skip
def test_whose_head_is_not_enough_goes_to_the_application(data: bytes) -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        await client.send(data)
        head = await client.reader.readuntil(b"\r\n\r\n")
        if b" 100 " in head:
            head = await client.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.partition(b"\r\n")[0]

    assert run_with_rejection(scenario)[0] == ["/task"]


def test_a_body_that_does_not_come_ends_the_connection_and_so_does_idling() -> None:
    async def scenario(server: ListeningServer) -> None:
        slow_client, idle = await server.connect(), await server.connect()
        for client, data in ((slow_client, (POST % b"task")[:-1]), (idle, POST % b"task")):
            assert (await client.request(data)).status == 429
        assert await slow_client.read_rest() == b"" and await idle.read_rest() == b""

    assert run_with_rejection(scenario, limits=SHORT_TIMEOUT, idle=0.3)[0] == []


def test_what_is_no_http_behind_one_that_was_turned_away_is_refused() -> None:
    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        assert (await client.request(POST % b"task")).status == 429
        await client.send(b"\x00\x01\r\n\r\n")
        assert (await client.read_response()).status == 400
        assert await client.read_rest() == b""

    run_with_rejection(scenario)


@pytest.mark.full
def test_answers_that_a_client_does_not_take_do_not_pile_up_and_it_is_dropped() -> None:
    async def send_endlessly(client: RawClient) -> None:
        try:
            while True:
                client.writer.write((POST % b"task") * 100)
                await client.writer.drain()
        except ConnectionError:
            return

    async def scenario(server: ListeningServer) -> None:
        client = await server.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sending = asyncio.create_task(send_endlessly(client))
        unread = 0
        while server.state.connections:
            unread = max(unread, *(each.transport.get_write_buffer_size() for each in server.state.connections))
            await asyncio.sleep(0.001)
        await asyncio.wait_for(sending, TIMEOUT_SECONDS)
        assert 0 < unread < 2**17

    run_with_rejection(scenario, write_timeout=0.2)
