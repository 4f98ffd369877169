"""Who is turned away: answered by the head of a request, and everything that keeps a request from that."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import Overloaded
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController, AdmissionLimits, Permit
from chairlift.web.http_protocol import SMALL_BODY_BYTES, Rejection
from chairlift.web.start_throttle import STARTS_PER_ITERATION
from support_http import BRISK, CHUNKED, GET, PATIENCE, ListeningServer, RawClient, run_scenario

FULL = "server overloaded"
POST = b"POST /%s HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
CLOSED = b"POST /task HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
OLD = b"POST /task HTTP/1.0\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"


class Keeper:
    """An early check that rejects all requests to the task paths, and records the header blocks."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, dict[bytes, bytes]]] = []
        self.seen: list[AccessRecord] = []

    def __call__(self, target: bytes, headers: list[tuple[bytes, bytes]]) -> Rejection | None:
        self.asked.append((target, dict(headers)))
        if target != b"/task":
            return None
        return Rejection(Overloaded(FULL, retry_after=2.5), "/tasks/{id}", "tenant-1")


def kept(scenario: Callable[[ListeningServer], Awaitable[None]], **options: object) -> tuple[list[str], Keeper]:
    """Run a scenario against a server with an early check; returns the requests of its application, and the check."""
    keeper = Keeper()
    app = run_scenario(scenario, gate=keeper, seen=keeper.seen.append, **options)  # type: ignore[arg-type]
    return app.heard, keeper


def test_who_is_turned_away_is_answered_and_may_ask_again_on_the_same_connection() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        for _ in range(3):
            response = await peer.request(POST % b"task")
            assert response.status == 429
            assert response.headers["retry-after"] == "3" and response.headers["retry-after-ms"] == "2500"
            assert response.headers["content-type"] == "application/json" and "connection" not in response.headers
            error = response.object["error"]
            assert (error["message"], error["code"], error["type"]) == (FULL, "overloaded", "rate_limit_error")
        assert (await peer.request(POST % b"other")).object["body"] == "hello"

    heard, keeper = kept(scenario)
    assert heard == ["/other"] and len(keeper.asked) == 4
    assert [(each.route, each.status, each.code, each.tenant, each.begun) for each in keeper.seen] == [
        ("/tasks/{id}", 429, "overloaded", "tenant-1", False)
    ] * 3


def test_the_answer_has_the_requests_own_id_or_a_new_one() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        mine = (POST % b"task").replace(b"host: x", b"host: x\r\nX-Request-Id: mine-1")
        assert (await peer.request(mine)).headers["x-request-id"] == "mine-1"
        assert (await peer.request(POST % b"task")).headers["x-request-id"].startswith("req-")

    _, keeper = kept(scenario)
    assert keeper.seen[0].request_id == "mine-1"


@pytest.mark.parametrize("size", [1, 7, 40])
def test_the_answer_does_not_wait_for_the_body_which_is_thrown_away(size: int) -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        head, _, body = (POST % b"task").partition(b"\r\n\r\n")
        await peer.send(*(head[at : at + size] for at in range(0, len(head), size)), b"\r\n\r\n")
        assert (await peer.read_response()).status == 429
        await peer.send(body[:2], body[2:], GET % b"next")
        assert (await peer.read_response()).object["path"] == "/next"

    assert kept(scenario)[0] == ["/next"]


def test_many_in_one_piece_are_all_answered_in_order() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send((POST % b"task") * 20 + POST % b"a" + (POST % b"task") + GET % b"b")
        result = [(await peer.read_response()).status for _ in range(21)]
        assert result == [429] * 20 + [200]
        rest = [await peer.read_response() for _ in range(2)]
        assert [each.object.get("path") for each in rest] == ["/task", "/b"], "a queued request is not rejected early"

    assert kept(scenario)[0] == ["/a", "/task", "/b"]


@pytest.mark.parametrize("data", [CLOSED, OLD], ids=["close", "HTTP/1.0"])
def test_the_connection_ends_where_the_client_wants_it_or_knows_no_other_way(data: bytes) -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        response = await peer.request(data)
        assert (response.status, response.headers["connection"]) == (429, "close")
        assert await peer.read_rest() == b""

    assert kept(scenario)[0] == []


class Host:
    """An early check that hands out permits to complete requests while it has some left."""

    def __init__(self, room: int) -> None:
        self.line = AdmissionController(AdmissionLimits(max_waiting_requests=room), FakeClock())
        self.asked = 0

    def __call__(self, target: bytes, headers: list[tuple[bytes, bytes]]) -> Callable[[], Permit | None]:
        return self.admit

    def admit(self) -> Permit | None:
        self.asked += 1
        return self.line.admit(0) if self.line.waiting_requests < self.line._limits.max_waiting_requests else None


@pytest.mark.parametrize("count", [1, 3 * STARTS_PER_ITERATION])
def test_who_comes_as_a_whole_is_let_in_with_a_permit_and_all_are_answered_in_order(count: int) -> None:
    async def scenario(site: ListeningServer) -> None:
        peers = [await site.peer() for _ in range(count)]
        for number, peer in enumerate(peers):
            peer.writer.write(POST % b"%d" % number)
        for number, peer in enumerate(peers):
            assert (await peer.read_response()).object["path"] == f"/{number}"
            assert (await peer.request(GET % b"again")).object["path"] == "/again"

    host = Host(1000)
    app = run_scenario(scenario, gate=host)
    permits = [permit for path, permit in zip(app.heard, app.permits, strict=True) if path != "/again"]
    assert len(permits) == len({id(permit) for permit in permits}) == count and None not in permits
    assert host.asked == count and set(app.permits[app.heard.index("/again") :]) - {None} <= set(permits)


def test_who_comes_in_pieces_or_finds_no_room_any_more_is_the_applications() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send((POST % b"slow")[:-2], b"lo", pause=0.05)
        assert (await peer.read_response()).object["body"] == "hello"
        for path in (b"first", b"second"):
            assert (await peer.request(POST % path)).object["body"] == "hello"

    host = Host(1)
    app = run_scenario(scenario, gate=host)
    assert app.heard == ["/slow", "/first", "/second"] and host.asked == 2
    assert [permit is None for permit in app.permits] == [True, False, True]


def test_what_is_no_http_behind_half_a_request_ends_it_without_a_permit() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(CHUNKED + b"5\r\nhello\r\nzz\r\n")
        assert (await peer.read_response()).status == 400

    host = Host(1)
    run_scenario(scenario, gate=host)
    assert host.asked == 0


@pytest.mark.parametrize("data", [CLOSED, OLD], ids=["close", "HTTP/1.0"])
def test_a_connection_that_ends_waits_for_the_body_whose_arrival_would_reset_it(data: bytes) -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        head, _, body = data.partition(b"\r\n\r\n")
        await peer.send(head + b"\r\n\r\n", pause=0.05)
        await peer.send(body[:2], body[2:], pause=0.02)
        assert (await peer.read_response()).status == 429
        assert await peer.read_rest() == b""

    assert kept(scenario)[0] == []


def test_nothing_behind_an_answer_that_ends_the_connection_is_done() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        old = OLD.replace(b"host: x", b"host: x\r\nconnection: keep-alive")
        await peer.send(old + POST % b"other" + POST % b"task")
        assert (await peer.read_response()).headers["connection"] == "close"
        assert await peer.read_rest() == b""

    assert kept(scenario)[0] == []


LARGE = b"POST /task HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (SMALL_BODY_BYTES + 1)
EXPECTS = b"POST /task HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    "data",
    [
        LARGE + b"x" * (SMALL_BODY_BYTES + 1), EXPECTS, CHUNKED.replace(b"/a", b"/task") + b"0\r\n\r\n",
        GET % b"task", (POST % b"task").replace(b"POST", b"PUT"),
    ],
    ids=["large", "expects", "chunked", "GET", "PUT"],
)  # fmt: skip
def test_whose_head_is_not_enough_goes_to_the_application(data: bytes) -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        await peer.send(data)
        head = await peer.reader.readuntil(b"\r\n\r\n")
        if b" 100 " in head:
            head = await peer.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.partition(b"\r\n")[0]

    assert kept(scenario)[0] == ["/task"]


def test_a_body_that_does_not_come_ends_the_connection_and_so_does_idling() -> None:
    async def scenario(site: ListeningServer) -> None:
        late, idle = await site.peer(), await site.peer()
        for peer, data in ((late, (POST % b"task")[:-1]), (idle, POST % b"task")):
            assert (await peer.request(data)).status == 429
        assert await late.read_rest() == b"" and await idle.read_rest() == b""

    assert kept(scenario, limits=BRISK, idle=0.3)[0] == []


def test_what_is_no_http_behind_one_that_was_turned_away_is_refused() -> None:
    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        assert (await peer.request(POST % b"task")).status == 429
        await peer.send(b"\x00\x01\r\n\r\n")
        assert (await peer.read_response()).status == 400
        assert await peer.read_rest() == b""

    kept(scenario)


def test_answers_that_a_client_does_not_take_do_not_pile_up_and_it_is_dropped() -> None:
    async def flood(peer: RawClient) -> None:
        try:
            while True:
                peer.writer.write((POST % b"task") * 100)
                await peer.writer.drain()
        except ConnectionError:
            return

    async def scenario(site: ListeningServer) -> None:
        peer = await site.peer()
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        flooding = asyncio.create_task(flood(peer))
        unread = 0
        while site.state.connections:
            unread = max(unread, *(each.transport.get_write_buffer_size() for each in site.state.connections))
            await asyncio.sleep(0.001)
        await asyncio.wait_for(flooding, PATIENCE)
        assert 0 < unread < 2**17

    kept(scenario, write_seconds=0.2)
