"""ServerReader: each route has its own time limit and its own error, and keys go only to the routes they are for."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from chairlift.cli import http_request
from chairlift.cli.diagnosis import server_reader
from chairlift.cli.diagnosis.server_reader import Keys, ServerReader, call_within, read_all
from chairlift.core.errors import ConfigError
from support_fleet_server import FleetServer, open_fleet_server
from support_shares import for_each

NAMES = ("livez", "load", "debug")


@pytest.fixture
def server() -> Iterator[FleetServer]:
    with open_fleet_server() as server:
        server.routes = {"/livez": {}, "/load": {"state": "ready"}, "/admin/debug": {"service": "replica"}}
        server.keys = {"/load": "user", "/admin/debug": "admin"}
        yield server


def test_each_route_gets_its_key(server: FleetServer) -> None:
    read = ServerReader(server.url + "/v1/", Keys(api="user", admin="admin")).read(NAMES)
    assert read.is_reachable and read.object("load") == {"state": "ready"} and read.object("debug")["service"]
    swapped = ServerReader(server.url, Keys(api="admin", admin="user")).read(NAMES)
    assert [swapped.parts[name].status for name in NAMES] == [200, 401, 401] and swapped.object("load") == {}


def test_a_reading_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a server that sends a byte now and then: no timeout of a single read ends that."""
    stop = threading.Event()
    monkeypatch.setattr(server_reader, "send_request", lambda *_, **__: stop.wait() and (200, b""))
    try:
        read = ServerReader("http://127.0.0.1:9", Keys(), part_seconds=0.1).read(("livez",))
        assert not read.is_reachable and read.parts["livez"].error == "no complete answer within 0.1 s"
    finally:
        stop.set()


def test_a_closed_port_is_an_error_of_each_part(server: FleetServer) -> None:
    server.stop()
    read = ServerReader(server.url, Keys()).read(NAMES)
    assert not read.is_reachable and all("refused" in part.error for part in read.parts.values())


def test_several_servers_are_read_together(server: FleetServer) -> None:
    readers = [ServerReader(server.url, Keys()) for _ in range(3)]
    assert [each.parts["livez"].status for each in read_all(readers, ("livez",))] == [200] * 3


def test_an_interrupt_ends_the_reading_of_many_servers_at_once() -> None:
    """Threads that wait for servers hold neither the interrupt nor the end of the process."""
    script = (
        "import signal, threading, time\n"
        "from chairlift.cli.diagnosis.server_reader import Keys, ServerReader, read_all\n"
        "class Silent(ServerReader):\n"
        "    def read(self, names=()):\n"
        "        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n"
        "        time.sleep(3600)\n"
        "read_all([Silent('http://a', Keys())], ())\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "KeyboardInterrupt" in result.stderr


def test_an_error_of_a_reading_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ServerReader, "read", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        read_all([ServerReader("http://a", Keys())], ())


def test_a_function_that_raises_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    assert call_within({"a": lambda: 1 // 0, "b": lambda: 2}, 5.0) == {"a": None, "b": 2}


@for_each("url", [
    "localhost:8000", "ftp://a", "http://", "http://h:99999", "http://h:0", "http://[", "http://u:secret@h:99999",
    "http://u:secret@h", "http://h/?x=secret", "http://h/#fleet", "http://h/?",
])  # fmt: skip
def test_a_url_that_is_none_or_says_more_than_a_server_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="--url") as caught:
        ServerReader(url, Keys())
    assert "secret" not in caught.value.message


def test_an_endless_answer_is_an_error(server: FleetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "MAX_RESPONSE_BYTES", 1)
    part = ServerReader(server.url, Keys()).read(("load",)).parts["load"]
    assert part.status == 0 and part.error == "the response is longer than 1 bytes"
