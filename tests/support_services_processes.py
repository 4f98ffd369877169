"""Services for tests, as own processes: etcd and dnsmasq on free ports, with their data in temporary folders.

A test whose service is not installed is skipped. With CHAIRLIFT_REQUIRE_SERVICES=1 it fails instead.
"""

import base64
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from install_services import PACKAGES, find_program

START_SECONDS = 20.0

FREE_PORTS = (15_000, 32_000)
"""The first port and the one behind the last of `free_port`; Linux gives 32768 and above to clients."""
MAX_WORKERS = 16
"""Workers of xdist that have ports of their own; the 17th shares those of the first."""


def require_service(program: str) -> str:
    """Return the path of a program; skips the test without it, or fails it with CHAIRLIFT_REQUIRE_SERVICES=1."""
    path = find_program(program)
    if path is not None:
        return path
    reason = f"{program} is not installed (Debian's package {PACKAGES[program]})"
    if os.environ.get("CHAIRLIFT_REQUIRE_SERVICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """Return a port that is free for TCP and UDP, and that the system gives to no connection of a client.

    A server that is killed and started again finds its port free. A process gets another port each time, and workers
    of xdist have ports of their own: a service listens seconds after its port was chosen.
    """
    while True:
        port = next(candidate_ports(os.getpid()))
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as each:
                    each.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port


@cache
def candidate_ports(pid: int) -> Iterator[int]:
    """Yield the ports that this process may take, in a circle from a random one on; a forked child begins elsewhere.

    One iterator for a process, which goes on where the last caller left off.
    """
    worker, begin, count = os.environ.get("PYTEST_XDIST_WORKER"), FREE_PORTS[0], FREE_PORTS[1] - FREE_PORTS[0]
    if worker is not None:
        count //= MAX_WORKERS
        begin += int(worker.removeprefix("gw")) % MAX_WORKERS * count
    at = secrets.randbelow(count)
    return itertools.cycle((*range(begin + at, begin + count), *range(begin, begin + at)))


def wait_for(is_ready: Callable[[], bool], process: "subprocess.Popen[bytes]", what: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not is_ready():
        assert process.poll() is None, f"{what} ended with {process.returncode}"
        assert time.monotonic() < end, f"{what} is not ready after {START_SECONDS} s"
        time.sleep(0.02)


class EtcdServer:
    """One etcd server that keeps its port and data when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._program, self._folder = require_service("etcd"), folder
        self.port, self._peer_port = free_port(), free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client, peer = f"http://{self.host}", f"http://127.0.0.1:{self._peer_port}"
        command = [
            self._program, "--data-dir", str(self._folder / "etcd"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--heartbeat-interval", "50", "--election-timeout", "250",
            "--log-level", "error",
        ]  # fmt: skip
        with (self._folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._is_ready, self.process, "etcd")

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(10)
            self.process = None

    def forget(self) -> None:
        """Delete the data of a server that is stopped."""
        shutil.rmtree(self._folder / "etcd")

    def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        response = httpx.post(f"http://{self.host}{path}", json=body, timeout=5, verify=False)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def put(self, key: str, value: str) -> int:
        """Set a key and return the revision of the store."""
        return int(self.call("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})["header"]["revision"])

    def delete(self, key: str) -> None:
        self.call("/v3/kv/deleterange", {"key": encoded(key)})

    def keys(self, prefix: str) -> dict[str, str]:
        body = self.call("/v3/kv/range", {"key": encoded(prefix), "range_end": encoded(prefix + "\x7f")})
        return {decoded(each["key"]): decoded(each.get("value", "")) for each in body.get("kvs", ())}

    def compact(self, revision: int) -> None:
        self.call("/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def revoke_all_leases(self) -> None:
        for each in self.call("/v3/lease/leases", {}).get("leases", ()):
            self.call("/v3/lease/revoke", {"ID": each["ID"]})

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{self.host}/health", timeout=1, verify=False).json().get("health") == "true"
        except (httpx.HTTPError, ValueError):
            return False


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    return base64.b64decode(text).decode()


@contextmanager
def etcd_server(folder: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class DnsServer:
    """A dnsmasq whose records can be replaced."""

    def __init__(self, folder: Path) -> None:
        self._program, self._folder = require_service("dnsmasq"), folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *records: str, ttl: int = 1) -> None:
        """Answer with these records, as in host-record=name,127.0.0.2 and srv-host=_x._tcp.name,target,port."""
        self.stop()
        command = [
            self._program, "--keep-in-foreground", f"--port={self.port}", "--listen-address=127.0.0.1",
            "--bind-interfaces", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", f"--local-ttl={ttl}",
            "--auth-ttl=1", "--local=/test/", "--pid-file=", "--user=", "--log-facility=-",
            *(f"--{record}" for record in records),
        ]  # fmt: skip
        with (self._folder / "dnsmasq.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._is_ready, self.process, "dnsmasq")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:
            return False


@contextmanager
def dns_server(folder: Path) -> Iterator[DnsServer]:
    server = DnsServer(folder)
    try:
        yield server
    finally:
        server.stop()
