"""ProcessClient: start, warm-up, close and exit of the engine process."""

import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import EngineDead, ModelError
from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.process import ProcessClient, connect, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.engine_process import spawn
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from support_process import (
    FAST_LIVENESS,
    PRINT,
    TESTS,
    TIMEOUT_SECONDS,
    RecordingSink,
    broken_start,
    can_generate,
    endless_start,
    endless_warmup,
    engine,
    fake_spec,
    faulty,
    has_ended,
    make_request,
    no_model,
    pid_of,
    python_command,
    slow_start,
    slow_warmup,
    socket_of,
    spec_of,
    wait_until,
)

SLOW = FakeConfig(seconds_per_step=0.02)


pytestmark = pytest.mark.usefixtures("children_import_tests")


def test_a_warm_up_is_no_hang_and_changes_nothing() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, step_timeout=0.4, call_timeout=0.4)
    with engine(spec_of(slow_warmup, FakeConfig(seconds_per_step=0.01)), watch=watch) as client:
        sink, request = RecordingSink(), make_request("a", max_tokens=60)
        client.submit(request, sink)
        sink.wait(lambda: "a" in sink.tokens)
        assert client.warmup() >= 1.0
        assert sink.end("a").finish_reason is FinishReason.LENGTH
        assert sink.tokens["a"] == expected_tokens(request.prompt_token_ids, request.params, FakeConfig())
        load = client.load()
        assert (load.steps, load.output_tokens, load.prompt_tokens) == (60, 60, 3)
        assert client.restarts == 0 and client.check_integrity() == []


def start_warmup(client: ProcessClient, errors: list[Exception]) -> threading.Thread:
    """Start a warm-up in a thread and wait until a heartbeat reports it."""

    def work() -> None:
        try:
            client.warmup()
        except EngineDead as error:
            errors.append(error)

    warmup_thread = threading.Thread(target=work, daemon=True)
    warmup_thread.start()
    wait_until(lambda: client._connection is not None and client._connection._warmup_age > 0)
    return warmup_thread


def test_a_warm_up_that_hangs_is_seen_and_the_engine_is_started_again() -> None:
    watch, errors = LivenessConfig(heartbeat_timeout=2.0, stop_timeout=2.0), list[Exception]()
    with engine(spec_of(endless_warmup), watch=watch) as client:
        warmup_thread, sink, states = start_warmup(client, errors), RecordingSink(), list[ReplicaState]()
        client.submit(make_request("a"), sink)
        caller = threading.Thread(target=lambda: states.append(client.load().state), daemon=True)
        caller.start()
        caller.join(TIMEOUT_SECONDS)
        assert states == [ReplicaState.READY], "a load report does not wait for a warm-up"
        connection = client._connection
        assert connection is not None and not errors
        connection._watch = replace(watch, start_timeout=0.5)  # only now, so that this start has enough time
        warmup_thread.join(TIMEOUT_SECONDS)
        (error,) = errors
        assert "hangs: a warm-up takes" in str(error) and "the limit is 0.5 s" in str(error)
        assert "a warm-up takes" in str(sink.end("a").error)
        wait_until(lambda: client.restarts == 1)
        assert can_generate(client)


def test_calls_of_other_clients_wait_for_a_warm_up_and_have_their_own_limit_then() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, call_timeout=0.4)
    with engine(spec_of(slow_warmup), watch=watch) as client:
        assert client.process is not None
        other, errors = connect(client.process.address, watch=watch), list[Exception]()
        try:
            warmup_thread = start_warmup(other, errors)
            wait_until(lambda: client._connection is not None and client._connection._warmup_age > 0)
            assert client.check_integrity() == [] and other.cache_state()["total_blocks"] > 0
            warmup_thread.join(TIMEOUT_SECONDS)
            assert not errors and client.restarts == 0
        finally:
            other.close()


def test_a_call_waits_for_an_engine_that_other_programs_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    class DelayedTimer:
        """Counts nothing: all of the time was delay."""

        def __init__(self, pids: list[int]) -> None:
            timed.append(pids)

        def elapsed(self) -> float:
            return 0.0

    timed: list[list[int]] = []
    with engine(spec_of(slow_warmup), watch=replace(FAST_LIVENESS, call_timeout=1e-6)) as client:
        monkeypatch.setattr("chairlift.engine.client.process.UndelayedTimer", DelayedTimer)
        assert client.check_integrity() == []
        assert client.process is not None and timed == [[client.process.pid]]


# -- start and close -------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_model_that_cannot_be_loaded_is_a_typed_error_of_the_constructor() -> None:
    with pytest.raises(ModelError, match=r"model.safetensors is truncated: 10 bytes of 4096") as caught:
        start_engine_process(spec_of(no_model), SchedulerConfig(), watch=FAST_LIVENESS)
    assert caught.value.details == {"file": "model.safetensors", "size": 10}
    assert type(caught.value) is ModelError


def test_any_other_failure_to_start_is_engine_dead_with_its_sentence() -> None:
    with pytest.raises(EngineDead, match="did not start: ZeroDivisionError: an unexpected error"):
        start_engine_process(spec_of(broken_start), SchedulerConfig(), watch=FAST_LIVENESS)


def test_a_factory_that_is_not_there_is_named() -> None:
    with pytest.raises(Exception, match=r"no runner factory 'chairlift\.engine\.runner\.fake:nothing'") as caught:
        start_engine_process(
            type(fake_spec())("chairlift.engine.runner.fake:nothing"), SchedulerConfig(), watch=FAST_LIVENESS
        )
    assert caught.value.code == "config_error"  # type: ignore[attr-defined]


def test_an_engine_that_never_starts_is_given_up() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, start_timeout=1.0, stop_timeout=2.0)
    with pytest.raises(EngineDead, match="did not start within 1 s"):
        start_engine_process(spec_of(endless_start), SchedulerConfig(), watch=watch)


def test_an_engine_may_take_its_time_to_start() -> None:
    with engine(spec_of(slow_start), watch=LivenessConfig(heartbeat_timeout=1.0)) as client:
        assert can_generate(client) and client.restarts == 0


def test_an_address_without_an_engine_is_engine_dead(tmp_path: Path) -> None:
    watch = LivenessConfig(heartbeat_timeout=0.5, start_heartbeat_timeout=0.3)
    with pytest.raises(EngineDead, match="silent"):
        connect(f"ipc://{tmp_path}/no-engine", watch=watch)


def test_close_ends_open_requests_and_can_be_called_again() -> None:
    with engine(fake_spec(SLOW)) as client:
        sink, pid, socket = RecordingSink(), pid_of(client), socket_of(client)
        client.submit(make_request("a", max_tokens=1000), sink)
        sink.wait(lambda: "a" in sink.tokens)
        client.close()
        client.close()
        error = sink.end("a").error
        assert type(error) is EngineDead and "closed" in str(error)
        assert has_ended(pid) and not socket.exists() and not socket.parent.exists()
        with pytest.raises(EngineDead, match="closed"):
            client.submit(make_request("b"), sink)
        with pytest.raises(EngineDead, match="closed"):
            client.check_integrity()
        client.abort("a")
        assert client.load().state is ReplicaState.STOPPED
    assert len(sink.ends["a"]) == 1


def test_a_sink_may_close_the_client() -> None:
    with engine() as client:
        pid = pid_of(client)
        client.submit(make_request("a"), lambda outputs: client.close())
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not has_ended(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert has_ended(pid)


def test_engines_leave_nothing_behind() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with engine() as client:
        assert can_generate(client)
    before, threads, pids, folders = descriptors(), threading.active_count(), [], []
    for _ in range(4):
        with engine() as client:
            pids.append(pid_of(client))
            folders.append(socket_of(client).parent)
    assert descriptors() == before
    assert threading.active_count() == threads
    assert all(has_ended(pid) for pid in pids) and not any(folder.exists() for folder in folders)


@pytest.mark.full
def test_an_engine_can_be_spawned_without_a_client() -> None:
    process = spawn(fake_spec(), SchedulerConfig(), watch=FAST_LIVENESS)
    try:
        client = connect(process.address, watch=FAST_LIVENESS)
        try:
            assert can_generate(client)
        finally:
            client.close()
        assert process.exit_code is None
    finally:
        process.stop()
    assert process.exit_code == 0


def test_what_the_runner_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with engine(spec_of(faulty)) as client:
        sink = RecordingSink()
        client.submit(make_request("a", (PRINT,)), sink)
        sink.end("a")
    errors = capfd.readouterr()
    assert "the runner prints this" not in errors.out


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
print("imported", flush=True)
from support_process import *
client = start_engine_process(fake_spec(), SchedulerConfig(), watch=FAST_LIVENESS)
assert can_generate(client)
print(pid_of(client), socket_of(client), flush=True)
{end}
"""


def run_script(tmp_path: Path, end: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(TESTS), end=end))
    (tmp_path / "msgspec.py").write_text("raise ImportError('the current folder is none of the engine\\'s business')")
    command = [*python_command("import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"), str(script)]
    command[1:1] = ["-P"]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, cwd=tmp_path)


@pytest.mark.share(1)
@pytest.mark.parametrize("end", ["client.close()", "", "import atexit; atexit.register(client.close)", "1 / 0"])
def test_a_script_without_a_main_guard_runs_once_and_leaves_nothing(tmp_path: Path, end: str) -> None:
    done = run_script(tmp_path, end)
    assert done.stdout.count("imported") == 1, done.stdout + done.stderr
    assert (done.returncode == 0) == (end != "1 / 0"), done.stderr
    pid, socket = done.stdout.splitlines()[1].split()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (has_ended(int(pid)) and not Path(socket).parent.exists()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert has_ended(int(pid)) and not Path(socket).parent.exists()
