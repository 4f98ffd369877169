"""The engine process by itself: its input, when it exits and with which code; it serves clients while it starts."""

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ModelError
from chairlift.core.load_report import ReplicaState
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc import engine_main
from chairlift.engine.ipc.engine_main import close_sockets, read_message
from chairlift.engine.ipc.engine_process import STOP
from chairlift.engine.ipc.messages import (
    PROTOCOL,
    EngineHeartbeat,
    Goodbye,
    Hello,
    Outputs,
    Ready,
    StartFailed,
    StartMessage,
    Submit,
    ToClient,
    ToEngine,
    WireError,
    decode_engine_message,
    encode,
)
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.runner.fake_model import FakeConfig
from support_process import (
    HANG,
    PRINT,
    TIMEOUT_SECONDS,
    child_environment,
    fake_spec,
    faulty,
    make_request,
    no_model,
    slow_start,
    spec_of,
)


class Child:
    """A child process and a client's socket, both used by this thread."""

    def __init__(self, folder: Path, spec: RunnerSpec) -> None:
        self.folder = folder / "private"
        self.folder.mkdir()
        self.address = f"ipc://{self.folder}/engine"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chairlift.engine.ipc.engine_main"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=child_environment(),
        )  # fmt: skip
        start = encode(StartMessage(
            spec=spec, config=SchedulerConfig(), enable_prefix_caching=True, address=self.address, log_level=20,
            stop_timeout=0.5,
        ))  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(len(start).to_bytes(4, "big") + start)
        self.process.stdin.flush()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(self.address)
        self.send(Hello(PROTOCOL, 0.2, 600.0))

    def send(self, message: ToEngine) -> None:
        self.socket.send(encode(message))

    def receive(self, *kinds: type[ToClient]) -> ToClient:
        """Return the next message of these kinds."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end:
            if self.socket.poll(1000) and isinstance(message := decode_engine_message(self.socket.recv()), kinds):
                return message
        raise AssertionError(f"no {kinds} came")

    def wait_exit(self) -> tuple[int, str, str]:
        """Wait for its end; returns exit code, output and errors."""
        out, err = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, out.decode(), err.decode()

    def close_pipe(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def stop(self) -> None:
        """Write STOP and keep the pipe open, as a fork of the spawner would."""
        assert self.process.stdin is not None
        self.process.stdin.write(STOP)
        self.process.stdin.flush()

    def clean(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.context.destroy(linger=0)


@pytest.fixture
def children(tmp_path: Path) -> "Iterator[list[Child]]":
    made: list[Child] = []
    yield made
    for child in made:
        child.clean()


def start(children: list[Child], tmp_path: Path, spec: RunnerSpec | None = None) -> Child:
    children.append(Child(tmp_path, spec or fake_spec()))
    return children[-1]


@pytest.mark.full
def test_it_serves_and_leaves_when_the_pipe_closes(children: list[Child], tmp_path: Path) -> None:
    child = start(children, tmp_path)
    welcome = child.receive(Ready)
    assert isinstance(welcome, Ready) and welcome.pid == child.process.pid
    child.send(Submit(make_request("a", max_tokens=1)))
    outputs = child.receive(Outputs)
    assert isinstance(outputs, Outputs) and outputs.outputs[-1].finish_reason is FinishReason.LENGTH
    child.close_pipe()
    assert child.receive(Goodbye) == Goodbye("the engine was stopped")
    code, out, _ = child.wait_exit()
    assert (code, out) == (0, "") and not child.folder.exists()


def test_a_stop_message_in_the_pipe_ends_its_requests_and_signals_to_the_group_do_not(
    children: list[Child], tmp_path: Path
) -> None:
    child = start(children, tmp_path, fake_spec(FakeConfig(seconds_per_step=0.02)))
    child.receive(Ready)
    child.send(Submit(make_request("a", max_tokens=900)))
    child.receive(Outputs)
    child.process.send_signal(signal.SIGINT)
    child.process.send_signal(signal.SIGTERM)
    for _ in range(5):
        message = child.receive(Outputs, Goodbye)
        assert isinstance(message, Outputs) and message.outputs[-1].finish_reason is None
    child.stop()
    while isinstance(message := child.receive(Outputs, Goodbye), Outputs):
        last = message.outputs[-1]
    assert last.finish_reason is FinishReason.ERROR and last.error is not None and last.error.code == "engine_dead"
    assert child.wait_exit()[0] == 0 and not child.folder.exists()


@pytest.mark.full
def test_a_step_that_hangs_does_not_keep_it(children: list[Child], tmp_path: Path) -> None:
    child = start(children, tmp_path, spec_of(faulty))
    child.receive(Ready)
    child.send(Submit(make_request("a", (HANG,))))
    while not (
        isinstance(heartbeat := child.receive(EngineHeartbeat), EngineHeartbeat) and heartbeat.load.step_age_seconds > 0
    ):
        pass
    child.stop()
    assert isinstance(child.receive(Goodbye), Goodbye)
    assert child.wait_exit()[0] == 0


def test_it_sends_heartbeats_while_it_starts(children: list[Child], tmp_path: Path) -> None:
    child = start(children, tmp_path, spec_of(slow_start))
    first = child.receive(EngineHeartbeat, Ready)
    assert isinstance(first, EngineHeartbeat) and first.load.state is ReplicaState.STARTING
    assert isinstance(child.receive(Ready), Ready)


@pytest.mark.full
def test_a_failed_start_is_sent_and_waits_for_the_spawner(children: list[Child], tmp_path: Path) -> None:
    child = start(children, tmp_path, spec_of(no_model))
    failed = child.receive(StartFailed)
    assert isinstance(failed, StartFailed) and type(failed.error) is ModelError
    assert failed.error.details == {"file": "model.safetensors", "size": 10}
    assert child.process.poll() is None
    child.close_pipe()
    code, _, err = child.wait_exit()
    assert code == 0 and "Traceback" not in err, "the process that spawned it reports the error"


def test_what_the_runner_prints_goes_to_standard_error(children: list[Child], tmp_path: Path) -> None:
    child = start(children, tmp_path, spec_of(faulty))
    child.receive(Ready)
    child.send(Submit(make_request("a", (PRINT,), max_tokens=1)))
    child.receive(Outputs)
    child.close_pipe()
    _, out, err = child.wait_exit()
    assert out == "" and "the runner prints this" in err


@pytest.mark.share(2)
@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00\x05ab", b"\x00\x00\x00\x02\xc1\xc1", b"hello there, all of you"])
def test_what_is_no_start_message_is_refused(frame: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chairlift.engine.ipc.engine_main"],
        input=frame,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 2 and done.stdout == b""
    assert b"is started by chairlift itself" in done.stderr and b"Traceback" not in done.stderr


def test_a_message_is_read_in_whatever_pieces_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.write_bytes(b"\x00\x00\x00\x03abcde")
    with path.open("rb", buffering=0) as file:
        assert read_message(file.fileno()) == b"abc"
    path.write_bytes(b"\x00\x00\x00\x03ab")
    with path.open("rb", buffering=0) as file, pytest.raises(WireError, match="after 2 of 3 bytes"):
        read_message(file.fileno())


@pytest.mark.full
def test_a_process_launched_for_an_engine_that_never_comes_exits_silently() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chairlift.engine.ipc.engine_main", "json"],
        input=b"",
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_sockets_that_libzmq_does_not_end_do_not_keep_the_process() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    open_socket = context.socket(zmq.ROUTER)  # term() waits for it
    assert not close_sockets(context, context.socket(zmq.ROUTER))
    open_socket.close(0)


def test_sockets_without_pending_messages_end_at_once() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    assert close_sockets(context, context.socket(zmq.ROUTER))
    assert context.closed


def test_no_garbage_is_collected_during_imports_and_it_is_again_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_without_gc.py").write_text("import gc\nis_enabled = gc.isenabled()\nraise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    found: list[bool] = []
    monkeypatch.setattr(gc, "isenabled", lambda isenabled=gc.isenabled: found.append(isenabled()))
    engine_main._import(["imported_without_gc"])
    monkeypatch.undo()
    assert found == [False] and gc.isenabled()
