"""early_sighup: a SIGHUP before the event loop ends nothing and is not lost."""

import signal
import sys
from pathlib import Path

from chairlift.web.service.early_sighup import hold_reloads, take_reload
from support_process import wait_until
from support_server import running_server


def test_a_reload_is_remembered_once() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        hold_reloads()
        assert not take_reload()
        signal.raise_signal(signal.SIGHUP)
        assert take_reload() and not take_reload()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_reload_during_the_start_of_a_router_is_done_when_it_serves() -> None:
    command = [sys.executable, "-m", "chairlift", "router", "--port", "0", "--replica", "http://127.0.0.1:9"]
    with running_server(command, {}) as server:
        wait_until(lambda: handles_sighup(server.process.pid), 30.0)
        assert "listening on" not in server.log
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "were read again" in server.log, 30.0)
        assert server.process.poll() is None


def handles_sighup(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(line.startswith("SigCgt:") and int(line.split()[1], 16) & 1 for line in lines)
