"""Engine processes for tests: fake runners that fail, recording sinks and bounded waits."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import EngineDead, ModelError
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import MODEL_DEFAULTS, SamplingParams
from chairlift.engine.client.process import ProcessClient, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.runner.base import RunnerInfo, RunnerSpec
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.draft_planner import DraftPlanner
from chairlift.engine.step_plan import StepPlan
from support_forks import SERVER_MODULES, forked_children

TESTS = Path(__file__).parent
TIMEOUT_SECONDS = 60.0
"""Timeout of every wait, in seconds. Only a failing test waits this long."""

FAST_LIVENESS = LivenessConfig(heartbeat_timeout=2.0, stop_timeout=6.0, first_backoff=0.05)

HOLD_LOCK, HANG, DIE, EXIT, PRINT = 249, 250, 251, 252, 253
"""Prompt tokens at which the runner of `faulty` computes for HOLD_SECONDS and no other thread of Python can run, sleeps
for an hour, raises EngineDead, exits the process or prints."""

HOLD_SECONDS = 1.5


def fake_spec(config: FakeConfig | None = None) -> RunnerSpec:
    return RunnerSpec("chairlift.engine.runner.fake:build", msgspec.msgpack.encode(config or FakeConfig()))


def spec_of(factory: Callable[[bytes], Any], config: FakeConfig | None = None) -> RunnerSpec:
    """Make the spec of a factory of this module; PYTHONPATH of the child needs this folder."""
    return RunnerSpec(f"support_process:{factory.__name__}", msgspec.msgpack.encode(config or FakeConfig()))


def faulty(payload: bytes) -> FakeRunner:
    def hook(plan: StepPlan, stage: str) -> None:
        if stage != "launch":
            return
        ids = [token for new in plan.new_sequences for token in new.token_ids[: -new.num_output_tokens or None]]
        if HOLD_LOCK in ids:
            end = time.monotonic() + HOLD_SECONDS
            while time.monotonic() < end:
                sum(range(2**25))
        if HANG in ids:
            time.sleep(3600)
        if DIE in ids:
            raise EngineDead("the device fell off the bus")
        if EXIT in ids:
            os._exit(3)
        if PRINT in ids:
            sys.stdout.write("the runner prints this\n")
            sys.stdout.flush()

    return FakeRunner(msgspec.msgpack.decode(payload, type=FakeConfig), hook=hook)


def with_all_drafts(payload: bytes) -> FakeRunner:
    """Build the fake runner in a process where every proposed draft is tried, whatever the steps take."""
    pytest.MonkeyPatch().setattr(DraftPlanner, "_costs", lambda planner, decodes: (1.0, 0.0))
    return FakeRunner(msgspec.msgpack.decode(payload, type=FakeConfig))


class _Start:
    """A runner whose start() first calls a function."""

    def __init__(self, payload: bytes, first: Callable[[], None]) -> None:
        self._runner, self._first = FakeRunner(msgspec.msgpack.decode(payload, type=FakeConfig)), first

    def start(self) -> RunnerInfo:
        self._first()
        return self._runner.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def slow_start(payload: bytes) -> Any:
    return _Start(payload, lambda: time.sleep(1.5))


def slow_warmup(payload: bytes) -> FakeRunner:
    runner = FakeRunner(msgspec.msgpack.decode(payload, type=FakeConfig))
    runner.warmup = lambda: time.sleep(1.2)  # type: ignore[method-assign]
    return runner


def endless_warmup(payload: bytes) -> FakeRunner:
    runner = FakeRunner(msgspec.msgpack.decode(payload, type=FakeConfig))
    runner.warmup = lambda: time.sleep(3600)  # type: ignore[method-assign]
    return runner


def endless_start(payload: bytes) -> Any:
    return _Start(payload, lambda: time.sleep(3600))


def no_model(payload: bytes) -> Any:
    def first() -> None:
        raise ModelError("model.safetensors is truncated: 10 bytes of 4096", file="model.safetensors", size=10)

    return _Start(payload, first)


def broken_start(payload: bytes) -> Any:
    def first() -> None:
        raise ZeroDivisionError("an unexpected error")

    return _Start(payload, first)


def starts_only_once(payload: bytes) -> Any:
    """Make a runner that starts only once.

    Later starts fail because the flag file in CHAIRLIFT_TEST_FLAG exists.
    """
    flag = Path(os.environ["CHAIRLIFT_TEST_FLAG"])

    def first() -> None:
        if flag.exists():
            raise ModelError("the model folder is gone", file=str(flag))
        flag.touch()

    return _Start(payload, first)


def make_request(name: str, prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> GenerateRequest:
    request_fields = {
        key: fields.pop(key)
        for key in ("timeout", "tenant", "eos_token_ids", "cache_salt", "predicted_token_ids")
        if key in fields
    }
    params = SamplingParams(**{**MODEL_DEFAULTS, **fields}).with_defaults({}, max_tokens=16, seed=len(name))
    return GenerateRequest(request_id=name, prompt_token_ids=prompt, params=params, **request_fields)


class RecordingSink:
    """A sink that records all outputs and lets a test wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.batches: list[list[EngineOutput]] = []
        self.ends: dict[str, list[EngineOutput]] = {}
        self.tokens: dict[str, list[int]] = {}

    def __call__(self, outputs: list[EngineOutput]) -> None:
        with self._changed:
            self.batches.append(outputs)
            for output in outputs:
                self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    self.ends.setdefault(output.request_id, []).append(output)
            self._changed.notify_all()

    def end(self, name: str) -> EngineOutput:
        """Wait for the final output of a request; asserts that it is the only one."""
        self.wait(lambda: name in self.ends)
        (last,) = self.ends[name]
        return last

    def wait(self, condition: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"the condition is still false after {seconds} s"


def wait_until(condition: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
    """Wait until a condition is true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition is still false after {seconds} s"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Whether a process has ended; a zombie that was not reaped counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def socket_of(client: ProcessClient) -> Path:
    assert client.process is not None
    return Path(client.process.address.removeprefix("ipc://"))


def pid_of(client: ProcessClient) -> int:
    assert client.process is not None
    return client.process.pid


@contextmanager
def engine(
    spec: RunnerSpec | None = None,
    config: SchedulerConfig | None = None,
    *,
    watch: LivenessConfig = FAST_LIVENESS,
    **more: Any,
) -> Iterator[ProcessClient]:
    """Start an engine in a process, a fork but for `make test-all`, and stop it at the end."""
    with forked_children(SERVER_MODULES):
        client = start_engine_process(spec or fake_spec(), config or SchedulerConfig(), watch=watch, **more)
        try:
            yield client
        finally:
            client.close()


def can_generate(client: ProcessClient, name: str = "probe") -> bool:
    """Whether a request to the engine gets all its tokens."""
    sink = RecordingSink()
    client.submit(make_request(name, max_tokens=3), sink)
    return sink.end(name).finish_reason is FinishReason.LENGTH and len(sink.tokens[name]) == 3


def child_environment() -> dict[str, str]:
    """Return the environment in which a child process finds this module."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}


def python_command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def engine_threads() -> set[threading.Thread]:
    """Return the threads of engines in this process; fixtures that outlive a test keep some."""
    return {thread for thread in threading.enumerate() if thread.name == "chairlift-engine"}
