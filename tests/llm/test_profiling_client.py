"""ProfilingClient: forwards outputs unchanged and records them, also across a process boundary."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, SamplingParams
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ConfigError, DuplicateRequestId
from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from chairlift.engine.step_stats import StepStats
from chairlift.llm import profiling_client
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.profiling_client import ProfilingClient, StepClock, open_profile
from support_process import RecordingSink, can_generate, engine, make_request, pid_of, wait_until
from support_step_stats import make_stats
from support_traces import Event, check_trace, read_trace, requests_of, steps_of

FAKE = FakeConfig(num_blocks=64)


def inline(**options: Any) -> InlineClient:
    return InlineClient(EngineLoop(FakeRunner(FAKE), SchedulerConfig(**options)))


def run_requests(client: ProfilingClient, count: int = 12) -> RecordingSink:
    """Run requests that need more blocks than the pool has, and one that is aborted."""
    sink, tokens = RecordingSink(), {}
    for number in range(count):
        request = make_request(f"r{number}", tuple(range(1, 40 + number)), max_tokens=60)
        tokens[request.request_id] = expected_tokens(request.prompt_token_ids, request.params, FAKE)
        client.submit(request, sink)
    client.submit(make_request("aborted", max_tokens=1000), sink)
    client.abort("aborted")
    assert sink.end("aborted").finish_reason is FinishReason.ABORT
    for name, expected in tokens.items():
        assert sink.end(name).finish_reason is FinishReason.LENGTH and sink.tokens[name] == expected
    return sink


def read_events(path: Path) -> list[Event]:
    events = read_trace(path)
    check_trace(events)
    return events


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_and_requests_of_an_inline_engine(overlap: bool, tmp_path: Path) -> None:
    client = ProfilingClient(inline(overlap=overlap), open_profile(tmp_path / "t.json"))
    step_stats: list[StepStats] = []
    client.watch_steps(step_stats.append)
    run_requests(client)
    client.close()
    client.close()
    events = read_events(tmp_path / "t.json")
    json.loads((tmp_path / "t.json").read_text())
    assert [event["args"]["step"] for event in steps_of(events)] == [stats.step_id for stats in step_stats]
    assert [event["args"]["tokens"] for event in steps_of(events)] == [stats.num_tokens for stats in step_stats]
    phases = requests_of(events)
    assert set(phases) == {f"r{number}" for number in range(12)} | {"aborted"}
    assert all(request_phases[0] == "queued" for request_phases in phases.values())
    assert all(
        request_phases[-2:] == ["prefill", "decode"] for name, request_phases in phases.items() if name != "aborted"
    )


def test_steps_and_requests_of_an_engine_in_another_process_and_of_the_next_one(tmp_path: Path) -> None:
    with engine() as inner:
        client = ProfilingClient(inner, open_profile(tmp_path / "t.json"))
        run_requests(client)
        os.kill(pid_of(inner), signal.SIGKILL)
        wait_until(lambda: inner.restarts == 1 and inner.load().state is ReplicaState.READY)
        assert can_generate(client, "again")  # type: ignore[arg-type]
        client.close()
    events = read_events(tmp_path / "t.json")
    steps = [event["args"]["step"] for event in steps_of(events)]
    second = steps.index(0, 1)
    assert steps[:second] == list(range(second)) and steps[second:] == [0, 1, 2]
    assert requests_of(events)["again"] == ["queued", "prefill", "decode"]
    assert len(requests_of(events)) == 14


def test_a_sink_gets_one_list_a_step_and_all_taps_are_let_go(tmp_path: Path) -> None:
    client, sink = ProfilingClient(inline(), open_profile(tmp_path / "t.json")), RecordingSink()
    for number in range(5):
        client.submit(make_request(f"r{number}", max_tokens=9), sink)
    for number in range(5):
        sink.end(f"r{number}")
    assert len(sink.batches) < 5 * 9
    assert client._observers == client._submitted_at == client._first_output_at == {}
    client.close()


def test_what_is_refused_leaves_no_record_and_what_is_open_goes_on(tmp_path: Path) -> None:
    client, sink = ProfilingClient(inline(), open_profile(tmp_path / "t.json")), RecordingSink()
    client.submit(make_request("a", max_tokens=900), sink)
    with pytest.raises(DuplicateRequestId):
        client.submit(make_request("a"), RecordingSink())
    client.abort("a")
    assert sink.end("a").finish_reason is FinishReason.ABORT
    client.close()
    assert list(requests_of(read_events(tmp_path / "t.json"))) == ["a"]
    assert client._observers == client._submitted_at == {}


def test_a_profile_that_fails_harms_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a bug in the profile")

    profile = open_profile(tmp_path / "t.json")
    monkeypatch.setattr(profile, "step", fail)
    monkeypatch.setattr(profile, "request", fail)
    client, step_stats = ProfilingClient(inline(), profile), []
    client.watch_steps(step_stats.append)
    run_requests(client)
    assert step_stats and client._observers == {} and client._submitted_at == client._first_output_at == {}
    client.close()


def test_a_full_disk_is_reported_when_the_profile_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    client = ProfilingClient(inline(), open_profile("/dev/full"))
    run_requests(client)
    client.close()
    assert "the profile could not be written to its end" in caplog.text


def test_everything_else_is_passed_on(tmp_path: Path) -> None:
    client = ProfilingClient(inline(), open_profile(tmp_path / "t.json"))
    assert client.info.vocab_size == FAKE.vocab_size and client.limits.max_model_len == FAKE.max_model_len
    assert client.load().state is ReplicaState.READY and client.check_integrity() == [] and client.flush_cache() == 0
    assert (client.state, client.restarts, client.is_hanging) == (ReplicaState.READY, 0, False)
    assert client.batch_snapshot().total_blocks == 64
    assert client.cache_state()["total_blocks"] == 64 and client.scheduler_state()["steps"] == 0
    assert client.warmup() >= 0
    client.close()
    assert client.load().state is client.state is ReplicaState.STOPPED


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set this process's clock, in milliseconds."""
    now = [0.0]
    monkeypatch.setattr(profiling_client.time, "monotonic", lambda: now[0] / 1e3)

    def set_clock(milliseconds: float) -> None:
        now[0] = milliseconds

    return set_clock


def ended_step(at: float, step_id: int = 0) -> StepStats:
    return make_stats(step_id, started_ms=at - 1, collect_started_ms=at)


def test_the_clocks_are_joined_where_a_step_is_shown_soonest(at: Callable[[float], None]) -> None:
    at(1000.0)
    clock = StepClock()
    assert clock.of_request(5.0) == 5.0, "no step was recorded"
    at(1030.0)
    assert clock.shift(ended_step(10.0)) == pytest.approx(20.0)
    at(1036.0)
    assert clock.shift(ended_step(20.0, 1)) == pytest.approx(20.0), "the steps of one engine process share one shift"
    assert clock.of_request(36.0) == pytest.approx(40.0), "the current time is the end of that step"


def test_a_new_life_begins_where_the_last_one_ended_or_later(at: Callable[[float], None]) -> None:
    at(0.0)
    clock = StepClock()
    at(30.0)
    clock.shift(ended_step(10.0))
    at(100.0)
    clock.shift(ended_step(90.0, 1))  # it is recorded at 110
    at(101.0)
    assert clock.shift(ended_step(2.0)) + 1.0 == pytest.approx(110.0)


def test_a_new_life_that_was_idle_for_long_is_seen_by_its_step_ids(at: Callable[[float], None]) -> None:
    clock = StepClock()
    at(20.0)
    assert clock.shift(make_stats(7, started_ms=19.0, collect_started_ms=20.0)) == pytest.approx(0.0)
    at(60.0)  # its zero is at 30
    assert clock.shift(make_stats(0, started_ms=29.0, collect_started_ms=30.0)) == pytest.approx(30.0)


@pytest.mark.share(1)
@pytest.mark.parametrize("client", ["inline", "process"])
def test_the_option_makes_a_profile(client: Any, tmp_path: Path) -> None:
    with LLM(RANDOM, engine_mode=client, num_blocks=50, profile=str(tmp_path / "t.json")) as llm:
        llm.generate(["a", "b"], SamplingParams(max_tokens=5), use_tqdm=False)
    events = read_events(tmp_path / "t.json")
    assert len(requests_of(events)) == 2 and len(steps_of(events)) >= 5


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere/t\.json: there is no folder") as raised:
        LLM(RANDOM, profile=str(tmp_path / "nowhere" / "t.json"))
    assert raised.value.details["option"] == "profile"


def test_a_service_that_does_not_start_closes_its_profile(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        LLM(RANDOM, profile=str(tmp_path / "t.json"), num_blocks=10**9)
    assert json.loads((tmp_path / "t.json").read_text())
