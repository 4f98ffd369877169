"""send: returns the child's result, raises the child's error, and reports a child that dies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.offline.subprocess_run import THREAD_VARIABLES, environ_with, exchange, send
from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.llm.builtin_models import RANDOM
from support_services import wait_until

SPEC = RunSpec(model=RANDOM, options={"seed": 3}, workload=WorkloadSpec(name="w1"))


def program(body: str) -> list[str]:
    """Return the command of a child that has `order` and may set `result`."""
    return [
        sys.executable, "-c",
        "import json, os, sys, pathlib\norder = json.loads(pathlib.Path(sys.argv[1]).read_text())\n" + body +
        "\npathlib.Path(sys.argv[2]).write_text(json.dumps(result))",
    ]  # fmt: skip


def test_the_order_arrives_and_the_result_comes_back() -> None:
    assert send(program("result = {'seen': order}"), SPEC)["seen"] == json.loads(SPEC.encode())


def test_the_number_of_threads_is_set_for_every_library_or_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    child = program(f"result = [os.environ.get(name) for name in {THREAD_VARIABLES}]\nresult = {{'got': result}}")
    assert send(child, SPEC, threads=7)["got"] == ["7", "7", "7"]
    assert send(child, SPEC)["got"][0] == "1"


def test_modules_of_a_folder_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "stowaway.py").write_text("import json, sys; open(sys.argv[2], 'w').write(json.dumps({'here': 1}))")
    command = [sys.executable, "-P", "-m", "stowaway"]
    for before in ("", "/nowhere"):
        monkeypatch.setenv("PYTHONPATH", before)
        assert exchange(command, b"{}", environ=environ_with(tmp_path)) == {"here": 1}
        assert environ_with(tmp_path)["PYTHONPATH"].endswith(before or tmp_path.name)
    with pytest.raises(ChairliftError, match="stowaway"):
        exchange(command, b"{}")


def test_a_death_is_reported_with_the_end_of_standard_error() -> None:
    with pytest.raises(ChairliftError, match=r"exit code 3 and no result: the last word"):
        send(program("print('the last word', file=sys.stderr)\nsys.exit(3)"), SPEC)
    with pytest.raises(ChairliftError, match=r"exit code -9 and no result: it printed no error"):
        send(program("os.kill(os.getpid(), 9)"), SPEC)


def test_an_error_comes_back_as_what_it_was() -> None:
    with pytest.raises(EngineDead, match="it died"):
        send(program("result = {'error': {'code': 'engine_dead', 'message': 'it died'}}"), SPEC)


def test_a_run_whose_parent_is_killed_ends_too(tmp_path: Path) -> None:
    """Otherwise it would slow down the next measurement."""
    here = tmp_path / "child"
    child = (
        "import os, pathlib, time\n"
        "from chairlift.bench.offline.child_process import exit_with_parent\n"
        "exit_with_parent()\n"
        f"pathlib.Path({str(here)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(120)"
    )
    parent = (
        "import sys\nfrom chairlift.bench.offline.subprocess_run import send\n"
        "from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec\n"
        f"send([sys.executable, '-c', {child!r}], RunSpec(model=None, options={{}}, workload=WorkloadSpec(name='w1')))"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    try:
        wait_until(lambda: here.exists() and here.read_text() != "")
    finally:
        process.kill()
        process.wait()
    number = int(here.read_text())
    wait_until(lambda: not is_alive(number))


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_interrupted_parent_kills_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = tmp_path / "child"

    def interrupted(self: subprocess.Popen[bytes], *_: object) -> int:
        monkeypatch.undo()
        wait_until(lambda: here.exists() and here.read_text() != "")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    body = f"pathlib.Path({str(here)!r}).write_text(str(os.getpid()))\nimport time\ntime.sleep(120)"
    with pytest.raises(KeyboardInterrupt):
        send(program(body), SPEC)
    assert not is_alive(int(here.read_text()))
