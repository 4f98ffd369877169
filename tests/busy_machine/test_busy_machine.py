"""busy_machine: a server is measured alone and beside busy processes, and its engine is stopped at the end."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import busy_machine.__main__ as tool
from support_process import has_ended

SPREAD = {"mean": 0.01, "p50": 0.01, "p99": 0.02}


class FakeServer:
    """A server whose log and requests the test chooses."""

    commands: ClassVar[list[list[str]]] = []
    url, text, engine_pid = "http://127.0.0.1:9", "", 1

    def __init__(self, command: list[str], log_file: Path) -> None:
        self.commands.append(command)

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self) -> str:
        return self.text


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *, ok: int, restarts: int) -> tuple[int, Any]:
    """Run the tool with requests of which `ok` of 9 succeed; return its exit code and report."""
    loads: list[Sequence[str]] = []

    def run_bench(
        url: str, requests: Sequence[Mapping[str, int]], folder: Path, load: Sequence[str]
    ) -> dict[str, object]:  # fmt: skip
        loads.append(load)
        seconds = 0.01 if len(loads) < 3 else 0.08
        return {
            "requests": {"total": 9, "ok": ok if len(requests) > 1 else 9, "by_outcome": {"ok": ok}},
            "tpot_seconds": SPREAD | {"mean": seconds}, "ttft_seconds": SPREAD, "e2e_seconds": SPREAD,
            "output_tokens_per_second": 12.0,
        }  # fmt: skip

    monkeypatch.setattr(tool, "ServerProcess", FakeServer)
    monkeypatch.setattr(FakeServer, "text", "chairlift: the engine is started again in 0.0 s\n" * restarts)
    monkeypatch.setattr(tool, "run_bench", run_bench)
    monkeypatch.setattr(tool, "stop_engine", lambda _: {"replaced_seconds": 30.0, "ready_seconds": 33.0})
    code = tool.main(["folder", "--busy=1", "--seconds=7", f"--json={file}", "--", "--dtype", "float32"])
    assert loads[-1] == ["--concurrency=6", "--duration=7.0"] and len(loads) == 5
    return code, json.loads(file.read_text())


def test_the_report_has_the_ratio_and_a_failure_or_a_restart_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    code, result = run(monkeypatch, tmp_path / "a.json", ok=9, restarts=0)
    assert code == 0 and result["ratio"] == pytest.approx(8.0) and result["failed"] == result["restarts"] == 0
    assert FakeServer.commands[-1][3:] == ["serve", "folder", "--port=0", "--dtype", "float32"]
    assert "beside 1 busy processes: 80.0 ms, 8.0 times" in capsys.readouterr().out
    code, result = run(monkeypatch, tmp_path / "b.json", ok=7, restarts=0)
    assert code == 1 and result["failed"] == 2
    code, result = run(monkeypatch, tmp_path / "c.json", ok=9, restarts=2)
    assert code == 1 and result["restarts"] == 2


@pytest.mark.parametrize("own_sessions", [False, True])
def test_busy_processes_run_until_the_end(own_sessions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(tool.subprocess, "Popen", start)
    with tool.busy_processes(2, own_sessions=own_sessions):
        assert [process.poll() for process in started] == [None, None]
        assert [os.getsid(process.pid) == process.pid for process in started] == [own_sessions] * 2
    assert all(has_ended(process.pid) for process in started)


@pytest.mark.full
def test_a_real_server_is_measured_and_its_stopped_engine_replaced(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = ["--busy=1", "--seconds=2", "--tokens=8", f"--json={file}", "--", "--heartbeat-timeout=3"]
    assert tool.main(words) == 0
    result = json.loads(file.read_text())
    assert result["phases"]["mixed"]["requests"]["ok"] > 0 and result["stopped"]["replaced_seconds"] > 2
