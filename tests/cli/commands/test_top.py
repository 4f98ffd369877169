"""top.py: the table has every replica, --once and --json print, and Ctrl-C ends the command cleanly."""

import builtins
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.cli.commands.top import cells_of, table_of, title_of
from chairlift.cli.main import main
from chairlift.cli.server_load_reader import FleetReader, FleetReading, FleetRow
from support_fleet_server import FleetServer, open_fleet_server

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


def test_a_row_shows_what_is_known_and_a_dash_for_the_rest() -> None:
    row = FleetRow(
        replica="http://r1", state="ejected", reason="3 failures\x1b[2J", weight=1.5, running=4, waiting=0,
        open_requests=2, attempts=1_000_000, tokens_per_second=12.34, cache_hit_ratio=0.456, kv_usage_ratio=1.0,
    )  # fmt: skip
    assert cells_of(row) == [
        "http://r1", "ejected", "1.5", "2", "4", "0", "12.3", "46%", "100%", "1,000,000",
        "3 failures\N{REPLACEMENT CHARACTER}[2J",
    ]  # fmt: skip
    assert cells_of(FleetRow(replica="r", state="unknown")) == ["r", "unknown", *["-"] * 8, ""]


def test_the_title_counts_the_replicas_that_are_ready() -> None:
    rows = (FleetRow(replica="a", state="healthy"), FleetRow(replica="b", state="ejected"))
    reading = FleetReading(
        url="http://h",
        at_seconds=0,
        service="router",
        rows=rows,
        metrics={"router_attempts": 7},
        tokens_per_second=1.25,
    )
    assert title_of(reading) == "router http://h · 1 of 2 replicas ready · 1.2 tokens/s · 7 attempts"
    assert title_of(FleetReading(url="u", at_seconds=0, service="down", error="no route")) == "u is down: no route"


def test_the_table_takes_no_markup_from_a_server() -> None:
    from rich.console import Console

    rows = (FleetRow(replica="http://[bold]r1", state="ready", reason="[red]x[/red]"),)
    output = io.StringIO()
    Console(file=output, width=200).print(table_of(FleetReading(url="u", at_seconds=0, service="router", rows=rows)))
    assert "http://[bold]r1" in output.getvalue() and "[red]x[/red]" in output.getvalue()


def test_once_prints_one_table(server: FleetServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", server.url, "--once", "--interval", "0.1"]) == 0
    text = capsys.readouterr().out
    assert text.count("replica http") == 1
    line = next(line for line in text.splitlines() if "ready" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")][1:] == [
        "ready", "-", "-", "4", "1", "0.0", "40%", "25%", "-", "",
    ]  # fmt: skip


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


@pytest.mark.share(1)
@pytest.mark.parametrize("options", [["--json"], []])
def test_ctrl_c_ends_the_command_cleanly_while_the_server_comes_and_goes(
    server: FleetServer, options: list[str]
) -> None:
    """The live table is read from the output of a process, whose terminal is a pipe."""
    command = [sys.executable, "-m", "chairlift", "top", "--url", server.url, "--interval", "0.1", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "160"}
    ) as process:
        assert process.stdout is not None
        if options:
            assert [json.loads(process.stdout.readline())["service"] for _ in range(3)] == ["replica"] * 3
            server.routes = {}
            while json.loads(process.stdout.readline())["service"] != "down":
                pass
            server.routes = {"/load": LOAD}
            while json.loads(process.stdout.readline())["service"] != "replica":
                pass
        else:
            while server.num_requests < 8:
                assert process.poll() is None
                time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert options or "ready" in output


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


def test_without_rich_the_error_says_how_to_install_it(
    server: FleetServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_module = builtins.__import__

    def blocked(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ImportError(name)
        return import_module(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", blocked)
    assert main(["top", "--url", server.url, "--once"]) == 2
    assert "pip install 'chairlift[top]'" in capsys.readouterr().err
    assert main(["top", "--url", server.url, "--once", "--json", "--interval", "0.1"]) == 0
