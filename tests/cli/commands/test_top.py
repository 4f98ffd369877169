"""`chairlift top`: --once and --json print, a pipe gets one report, and a terminal is restored at every end."""

import fcntl
import itertools
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from chairlift.cli.main import main
from chairlift.cli.server_load_reader import FleetReader, FleetReading
from support_fleet_server import FleetServer, open_fleet_server
from support_forks import process_start

MODULES = ("chairlift.cli.commands.top",)
LOAD = {"state": "ready", "running_requests": 4, "waiting_requests": 1, "output_tokens": 10, "total_blocks": 8,
        "free_blocks": 6, "prompt_tokens": 100, "cached_tokens": 40}  # fmt: skip


@pytest.fixture
def server() -> Iterator[FleetServer]:
    with open_fleet_server() as server:
        server.routes = {"/load": LOAD, "/metrics": "chairlift_output_tokens_total 10\n"}
        yield server


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_once_prints_one_table(
    server: FleetServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["top", "--url", server.url, "--once", "--interval", "0.1"]) == 0
    title, headings, line = capsys.readouterr().out.splitlines()
    assert title.startswith("replica http") and headings.split()[:2] == ["replica", "state"]
    assert line.split()[1:] == ["ready", "-", "-", "4", "1", "0.0", "40%", "25%", "-"]


@pytest.mark.parametrize("options", [[], ["--once"]])
def test_a_pipe_gets_one_report_that_fits_and_has_no_control_characters(
    server: FleetServer, options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["top", "--url", server.url, "--interval", "0.1", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 60 and "\x1b" not in "".join(lines)


def test_once_as_json_is_one_line(server: FleetServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", server.url, "--once", "--json", "--interval", "0.1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    reading = json.loads(line)
    assert (reading["service"], reading["tokens_per_second"]) == ("replica", 0.0)
    assert reading["replicas"][0]["kv_usage_ratio"] == 0.25
    assert reading["metrics"] == {"output_tokens": 10.0}


def test_a_server_that_is_down_is_shown_as_such(server: FleetServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.stop()
    assert main(["top", "--url", server.url, "--once"]) == 1
    assert "is down" in capsys.readouterr().out
    assert main(["top", "--url", server.url, "--once", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["service"] == "down"


def test_ctrl_c_ends_json_cleanly_while_the_server_comes_and_goes(server: FleetServer) -> None:
    command = [sys.executable, "-m", "chairlift", "top", "--url", server.url, "--interval", "0.1", "--json"]
    process = process_start(is_forked=True, modules=MODULES)(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert [json.loads(process.stdout.readline())["service"] for _ in range(3)] == ["replica"] * 3
        server.routes = {}
        while json.loads(process.stdout.readline())["service"] != "down":
            pass
        server.routes = {"/load": LOAD}
        while json.loads(process.stdout.readline())["service"] != "replica":
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")


class TerminalOfTop:
    """`chairlift top` in a pseudo terminal.

    Attributes:
        process: the command.
        text: what it has written.
    """

    def __init__(self, url: str, columns: int = 80, lines: int = 20) -> None:
        self.master, self._device = os.openpty()
        self.resize(columns, lines)
        self._mode = termios.tcgetattr(self._device)
        self.text = ""
        environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = process_start(is_forked=True, modules=MODULES)(
            [sys.executable, "-m", "chairlift", "top", "--url", url, "--interval", "0.1"],
            env=environ | {"TERM": "xterm"},
            stdin=self._device, stdout=self._device, stderr=self._device,
        )  # fmt: skip

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._device, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, text: str) -> str:
        """Read until a drawing has this text; returns the drawing."""
        deadline = time.monotonic() + 60
        while True:
            _, *drawings = self.text.split("\x1b[H")
            found = next((each for each in drawings if text in each and each.endswith("\x1b[J")), None)
            if found is not None:
                return found
            ready, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert ready, self.text[-2000:]
            self.text += os.read(self.master, 65536).decode()

    def end(self) -> int:
        """Wait for the end; returns the exit code. The terminal must be as before."""
        code: int = self.process.wait(60)
        while select.select([self.master], [], [], 0)[0]:
            self.text += os.read(self.master, 65536).decode()
        assert self.text.endswith("\x1b[?25h\x1b[?1049l") and "Traceback" not in self.text
        assert termios.tcgetattr(self._device) == self._mode
        return code

    def close(self) -> None:
        self.process.kill()
        os.close(self.master)
        os.close(self._device)


@pytest.mark.parametrize("ending", ["q", signal.SIGINT, signal.SIGTERM])
def test_a_terminal_is_restored_however_the_command_ends(server: FleetServer, ending: str | signal.Signals) -> None:
    with closing(TerminalOfTop(server.url)) as top:
        drawing = re.sub(r"\x1b\[\d*m", "", top.wait_for("25%"))
        lines = drawing.replace("\x1b[K", "").removesuffix("\x1b[J").split("\r\n")
        assert len(lines) == 20 and max(map(len, lines)) <= 80
        assert lines[0].startswith("replica http") and lines[-1] == "q quits; readings every 0.1 s"
        if isinstance(ending, str):
            os.write(top.master, ending.encode())
        else:
            top.process.send_signal(ending)
        assert top.end() == 0


def test_a_terminal_may_change_its_size_and_the_server_may_go(server: FleetServer) -> None:
    with closing(TerminalOfTop(server.url)) as top:
        top.wait_for("attempts")
        top.text = ""
        top.resize(50, 6)
        top.process.send_signal(signal.SIGWINCH)  # the terminal does it for the processes that it controls
        drawing = re.sub(r"\x1b\[\d*m", "", top.wait_for("wait  tok/s\x1b[K"))
        assert drawing.count("\r\n") == 5
        server.stop()
        assert "tried again every 0.1 s" in top.wait_for(f"{server.url} is down: ")
        os.write(top.master, b"q")
        assert top.end() == 0


def test_a_server_that_hangs_holds_up_no_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with closing(TerminalOfTop(url)) as top:
            top.wait_for(f"reading {url} ...")
            os.write(top.master, b"q")
            assert top.end() == 0 and "is down" not in top.text


def test_a_rejected_key_restores_the_terminal(server: FleetServer) -> None:
    server.keys = {"/load": "k", "/admin/replicas": "k"}
    with closing(TerminalOfTop(server.url)) as top:
        assert top.process.wait(60) == 1
        while "CHAIRLIFT_ADMIN_KEY" not in top.text:
            top.text += os.read(top.master, 65536).decode()
        assert top.text.index("\x1b[?1049l") < top.text.index("rejects the API key")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_within_a_destructor_ends_the_command_too(
    server: FleetServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python prints a KeyboardInterrupt of a destructor, and goes on."""

    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    read, numbers = FleetReader.read, itertools.count()

    def interrupted_read(reader: FleetReader) -> FleetReading:
        assert next(numbers) == 0, "the command goes on"
        Interrupted()
        return read(reader)

    monkeypatch.setattr(FleetReader, "read", interrupted_read)
    handler = signal.getsignal(signal.SIGINT)
    assert main(["top", "--url", server.url, "--json", "--interval", "0.1"]) == 0
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.share(3)
@pytest.mark.parametrize("interval", ["0", "-1", "0.05", "3601", "nan"])
def test_an_interval_out_of_range_is_rejected(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", f"--interval={interval}", "--once"]) == 2
    assert "--interval must be from 0.1 to 3600 seconds" in capsys.readouterr().err


def test_a_rejected_key_is_one_sentence(server: FleetServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.keys = {"/load": "k", "/admin/replicas": "k"}
    assert main(["top", "--url", server.url, "--once"]) == 1
    assert "set CHAIRLIFT_ADMIN_KEY or CHAIRLIFT_API_KEY" in capsys.readouterr().err


def test_the_keys_come_from_the_environment(server: FleetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.keys = {"/load": "k", "/admin/replicas": "k"}
    monkeypatch.setenv("CHAIRLIFT_ADMIN_KEY", "k")
    assert main(["top", "--url", server.url, "--once", "--json", "--interval", "0.1"]) == 0
