"""Failures of an engine process: killed, stopped, hanging, without its spawner, or with a client that does not read."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import zmq

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import EngineDead
from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.process import ProcessClient, connect
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.ipc.messages import PROTOCOL, ClientHeartbeat, Hello, Submit, encode
from chairlift.engine.runner.fake_model import FakeConfig
from support_process import (
    DIE,
    EXIT,
    FAST_LIVENESS,
    HANG,
    TESTS,
    TIMEOUT_SECONDS,
    RecordingSink,
    can_generate,
    engine,
    fake_spec,
    faulty,
    has_ended,
    make_request,
    pid_of,
    python_command,
    socket_of,
    spec_of,
    starts_only_once,
    wait_until,
)
from support_shares import each_value

NUM_OPEN = 200
SLOW_ENGINE = FakeConfig(seconds_per_step=0.02, num_blocks=4096)


pytestmark = pytest.mark.usefixtures("children_import_tests")


def open_many(client: ProcessClient, sink: RecordingSink, stream: bool) -> list[str]:
    names = [f"r{number}" for number in range(NUM_OPEN)]
    for name in names:
        client.submit(make_request(name, max_tokens=900), sink)
    if stream:
        sink.wait(lambda: sum(map(bool, sink.tokens.values())) > NUM_OPEN // 2)
    return names


def check_all_failed_once(sink: RecordingSink, names: list[str]) -> None:
    for name in names:
        last = sink.end(name)
        assert type(last.error) is EngineDead and last.finish_reason is FinishReason.ERROR
        assert last.usage is not None and last.usage.prompt_tokens > 0
    batches = len(sink.batches)
    time.sleep(0.3)
    assert all(len(sink.ends[name]) == 1 for name in names) and len(sink.batches) == batches


def check_restarted(client: ProcessClient, old_pid: int) -> None:
    """Check that the next request works in another process and the old process has ended."""
    assert can_generate(client)
    assert client.restarts == 1 and pid_of(client) != old_pid and has_ended(old_pid)
    assert client.check_integrity() == [] and client.load().running_requests == 0


@pytest.mark.parametrize("stream", [False, True])
def test_kill_9_ends_every_open_request_once_and_the_next_one_works(stream: bool) -> None:
    with engine(fake_spec(SLOW_ENGINE)) as client:
        sink, pid, socket = RecordingSink(), pid_of(client), socket_of(client)
        names = open_many(client, sink, stream)
        os.kill(pid, signal.SIGKILL)
        check_all_failed_once(sink, names)
        check_restarted(client, pid)
        assert not socket.parent.exists()


def test_an_idle_engine_that_is_killed_comes_back() -> None:
    with engine() as client:
        pid = pid_of(client)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: client.restarts == 1 and client.load().state is ReplicaState.READY)
        check_restarted(client, pid)


@pytest.mark.share(1)
@pytest.mark.parametrize("stream", [False, True])
def test_a_stopped_engine_is_noticed_by_its_silence(stream: bool) -> None:
    with engine(fake_spec(SLOW_ENGINE), watch=LivenessConfig(heartbeat_timeout=1.0)) as client:
        sink, pid = RecordingSink(), pid_of(client)
        names = open_many(client, sink, stream)
        os.kill(pid, signal.SIGSTOP)
        check_all_failed_once(sink, names)
        assert "silent" in str(sink.end("r0").error)
        check_restarted(client, pid)


def test_a_step_that_hangs_is_noticed_although_the_process_answers() -> None:
    watch = LivenessConfig(heartbeat_timeout=1.0, step_timeout=1.0)
    with engine(spec_of(faulty), watch=watch) as client:
        sink, pid = RecordingSink(), pid_of(client)
        client.submit(make_request("neighbour", max_tokens=1000), sink)
        client.submit(make_request("hang", (HANG,)), sink)
        check_all_failed_once(sink, ["neighbour", "hang"])
        assert "hangs" in str(sink.end("hang").error)
        check_restarted(client, pid)


@pytest.mark.share(1)
@pytest.mark.parametrize(("token", "message"), [(DIE, "the device fell off the bus"), (EXIT, "exit code 3")])
def test_a_runner_with_a_fatal_error_ends_its_process(token: int, message: str) -> None:
    with engine(spec_of(faulty, SLOW_ENGINE)) as client:
        sink, pid = RecordingSink(), pid_of(client)
        client.submit(make_request("neighbour", max_tokens=900), sink)
        sink.wait(lambda: "neighbour" in sink.tokens)
        client.submit(make_request("bad", (token,)), sink)
        check_all_failed_once(sink, ["neighbour", "bad"])
        assert message in str(sink.end("bad").error)
        check_restarted(client, pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_may_reach_the_whole_group_are_not_for_the_engine(number: int) -> None:
    with engine(fake_spec(SLOW_ENGINE)) as client:
        pid = pid_of(client)
        os.kill(pid, number)
        assert can_generate(client) and pid_of(client) == pid


def test_calls_end_with_the_engine() -> None:
    with engine(fake_spec(FakeConfig(seconds_per_step=3600))) as client:
        sink, pid = RecordingSink(), pid_of(client)
        client.submit(make_request("a"), sink)
        wait_until(lambda: client.load().step_age_seconds > 0)
        failed: list[Exception] = []

        def call() -> None:
            try:
                client.check_integrity()
            except EngineDead as error:
                failed.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        caller.join(TIMEOUT_SECONDS)
        assert len(failed) == 1
        client.abort("a")
        assert client.check_integrity() == []


def test_what_is_submitted_while_there_is_no_engine_waits_for_the_next_one() -> None:
    """Timeouts and aborts work in the meantime."""
    watch = LivenessConfig(heartbeat_timeout=2.0, first_backoff=2.0)
    with engine(watch=watch) as client:
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.restarts == 1 and client.process is not None)
        assert can_generate(client)
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.restarts == 2)
        sink = RecordingSink()
        for name, timeout in (("waits", None), ("late", 0.3), ("aborted", None), ("in time", 60.0)):
            client.submit(make_request(name, max_tokens=3, timeout=timeout), sink)
        client.abort("aborted")
        assert client.load().state is ReplicaState.STARTING
        assert sink.end("aborted").finish_reason is FinishReason.ABORT
        assert sink.end("late").error is not None and sink.end("late").error.code == "timeout"  # type: ignore[union-attr]
        assert "waits" not in sink.ends, "the restart backoff is not over"
        assert sink.end("waits").finish_reason is FinishReason.LENGTH
        assert sink.end("in time").finish_reason is FinishReason.LENGTH


def test_a_restart_that_fails_ends_the_requests_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIRLIFT_TEST_FLAG", str(tmp_path / "flag"))
    watch = LivenessConfig(heartbeat_timeout=2.0, first_backoff=0.2, max_restarts=3)
    with engine(spec_of(starts_only_once), watch=watch) as client:
        sink = RecordingSink()
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.restarts >= 1)
        ended = 0
        while client.load().state is not ReplicaState.DEAD and ended < 100:
            try:
                client.submit(make_request(f"r{ended}"), sink)
            except EngineDead:
                break
            error = sink.end(f"r{ended}").error
            assert type(error) is EngineDead and "the model folder is gone" in str(error)
            ended += 1
        assert ended >= 1
        wait_until(lambda: client.load().state is ReplicaState.DEAD)
        with pytest.raises(EngineDead, match="the model folder is gone"):
            client.submit(make_request("after"), sink)


def test_the_state_follows_the_engine_through_its_restarts() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, first_backoff=2.0, max_restarts=2)

    def run_and_kill(restarts: int) -> None:
        wait_until(lambda: (client.restarts, client.state) == (restarts, ReplicaState.READY))
        assert can_generate(client, f"life {restarts}")
        os.kill(pid_of(client), signal.SIGKILL)

    with engine(fake_spec(), watch=watch) as client:
        run_and_kill(0)
        run_and_kill(1)
        wait_until(lambda: client.restarts == 2)
        assert client.state is client.load().state is ReplicaState.STARTING
        run_and_kill(2)
        wait_until(lambda: client.state is ReplicaState.DEAD)
        assert client.load().state is ReplicaState.DEAD and client.restarts == 2
    assert (client.state, client.restarts) == (ReplicaState.STOPPED, 2)


def test_an_engine_that_dies_again_and_again_is_dead_for_good() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, first_backoff=0.01, max_restarts=2)
    with engine(spec_of(faulty), watch=watch) as client:
        sink = RecordingSink()
        for attempt in range(3):
            client.submit(make_request(f"r{attempt}", (EXIT,)), sink)
            assert type(sink.end(f"r{attempt}").error) is EngineDead
        wait_until(lambda: client.load().state is ReplicaState.DEAD)
        with pytest.raises(EngineDead, match="exit code 3"):
            client.submit(make_request("after"), sink)
        assert client.restarts == 2 and client.process is None


def test_a_second_client_sees_the_exit_and_cannot_restart() -> None:
    with engine(fake_spec(SLOW_ENGINE)) as owner:
        assert owner.process is not None
        other = connect(owner.process.address, watch=LivenessConfig(heartbeat_timeout=1.0))
        try:
            sink, pid = RecordingSink(), pid_of(owner)
            other.submit(make_request("a", max_tokens=900), sink)
            sink.wait(lambda: "a" in sink.tokens)
            os.kill(pid, signal.SIGKILL)
            assert type(sink.end("a").error) is EngineDead
            wait_until(lambda: other.load().state is ReplicaState.DEAD)
            assert (other.state, other.restarts) == (ReplicaState.DEAD, 0)
            check_restarted(owner, pid)
        finally:
            other.close()
        assert (other.state, owner.state) == (ReplicaState.STOPPED, ReplicaState.READY)


# -- clients that misbehave ------------------------------------------------------------------------------------------


def raw_client(context: "zmq.Context[zmq.Socket[bytes]]", owner: ProcessClient) -> "zmq.Socket[bytes]":
    assert owner.process is not None
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 1)
    socket.connect(owner.process.address)
    return socket


def test_malformed_bytes_are_dropped_and_the_engine_lives() -> None:
    with engine() as client, zmq.Context() as context, raw_client(context, client) as socket:
        good = encode(Hello(PROTOCOL, 1.0, 5.0))
        for frame in (b"", b"\xc1", b"\x80\x04\x95", os.urandom(1000), b"\x93" * 10_000, good[:-1], good + b"\x00"):
            socket.send(frame)
        socket.send_multipart([b"a", b"b", b"c"])
        socket.send(encode(Hello(PROTOCOL + 1, 1.0, 5.0)))
        socket.send(encode(Hello(PROTOCOL, 1.0, float("nan"))))
        socket.send(encode(ClientHeartbeat()))
        assert socket.poll(int(TIMEOUT_SECONDS * 1000))
        assert can_generate(client) and client.restarts == 0


@pytest.mark.full
def test_a_client_that_does_not_read_is_dropped_and_its_requests_end() -> None:
    fake = FakeConfig(max_model_len=1_000_000, num_blocks=100_000, verify=False, seconds_per_step=0.0005)
    with engine(fake_spec(fake), SchedulerConfig(max_model_len=20_000)) as client:
        with zmq.Context() as context, raw_client(context, client) as unread:
            unread.send(encode(Hello(PROTOCOL, 100.0, 600.0)))
            for number in range(64):
                unread.send(encode(Submit(make_request(f"r{number}", max_tokens=15_000))))
            wait_until(lambda: client.load().running_requests == 64)
            assert can_generate(client), "its neighbours do not wait"
            wait_until(lambda: client.load().running_requests == 0)
            assert client.load().output_tokens < 64 * 15_000
        assert client.restarts == 0 and client.check_integrity() == []


def test_a_client_that_falls_silent_loses_its_requests() -> None:
    with engine(fake_spec(SLOW_ENGINE)) as client:
        with zmq.Context() as context, raw_client(context, client) as silent:
            silent.send(encode(Hello(PROTOCOL, 0.1, 0.5)))
            silent.send(encode(Submit(make_request("a", max_tokens=900))))
            wait_until(lambda: client.load().running_requests == 1)
            wait_until(lambda: client.load().running_requests == 0)
        assert client.load().output_tokens < 900


OTHER_CLIENT = """
import sys, time
sys.path.insert(0, {tests!r})
from support_process import *
from chairlift.engine.client.process import connect
client = connect(sys.argv[1], watch=FAST_LIVENESS)
sink = RecordingSink()
client.submit(make_request("a", max_tokens=900), sink)
sink.wait(lambda: "a" in sink.tokens)
print("streams", flush=True)
print(sink.end("a").error, flush=True)
assert can_generate(client)
print("works again", flush=True)
client.close()
"""


def other_process(address: str) -> "subprocess.Popen[str]":
    command = [*python_command(OTHER_CLIENT.format(tests=str(TESTS))), address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_requests_of_a_client_process_that_is_killed_are_aborted() -> None:
    with engine(fake_spec(SLOW_ENGINE)) as client:
        assert client.process is not None
        with other_process(client.process.address) as other:
            assert other.stdout is not None and other.stdout.readline() == "streams\n"
            other.kill()
        wait_until(lambda: client.load().running_requests == 0)
        assert client.load().output_tokens < 900


@pytest.mark.full
def test_a_client_that_was_stopped_too_long_gets_an_error_and_may_go_on() -> None:
    with engine(fake_spec(SLOW_ENGINE)) as client:
        assert client.process is not None
        with other_process(client.process.address) as other:
            assert other.stdout is not None and other.stdout.readline() == "streams\n"
            other.send_signal(signal.SIGSTOP)
            wait_until(lambda: client.load().running_requests == 0)
            other.send_signal(signal.SIGCONT)
            assert "dropped this client" in other.stdout.readline()
            assert other.stdout.readline() == "works again\n"
            assert other.wait(TIMEOUT_SECONDS) == 0
        assert client.restarts == 0


# -- the spawner -----------------------------------------------------------------------------------------------------

SPAWNER = """
import os, sys
sys.path.insert(0, {tests!r})
from support_process import *
spec = spec_of(faulty, FakeConfig(seconds_per_step=0.02))
client = start_engine_process(spec, SchedulerConfig(), watch=FAST_LIVENESS)
sink = RecordingSink()
client.submit(make_request("a", ({token},), max_tokens=900), sink)
{fork}
print(pid_of(client), socket_of(client), flush=True)
time.sleep(3600)
"""


@pytest.mark.share(1)
@pytest.mark.parametrize(("token", "fork"), each_value([1, HANG], ["", "os.fork() or time.sleep(3600)"], count=3))
def test_the_engine_leaves_when_its_spawner_is_killed(token: int, fork: str) -> None:
    """Also during a step that hangs, and while a fork of the spawner has the pipe open."""
    command = python_command(SPAWNER.format(tests=str(TESTS), token=token, fork=fork))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as spawner:
        assert spawner.stdout is not None
        pid, path = spawner.stdout.readline().split()
        try:
            spawner.kill()
            wait_until(lambda: has_ended(int(pid)) and not Path(path).parent.exists())
        finally:
            os.killpg(spawner.pid, signal.SIGKILL)


def test_an_idle_engine_sleeps() -> None:
    def seconds(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with engine() as client:
        assert can_generate(client)
        pid = pid_of(client)
        before = seconds(pid)
        time.sleep(1.0)
        assert seconds(pid) - before < 0.2
        assert client.process is not None and client.process.pid == pid


def test_works_is_able_to_fail() -> None:
    with engine(fake_spec(FakeConfig(poison=1))) as client:
        assert not can_generate(client)
    assert FAST_LIVENESS.max_restarts > 0
