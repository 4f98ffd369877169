"""ProcessClient is an EngineClient: the same outputs as InlineClient and as no engine at all, across the border."""

import itertools
import os
import random
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    EngineDead,
    ForwardFailed,
    InvalidRequest,
    ModelError,
    NonFiniteLogits,
    QueueFull,
    RequestTimeout,
    TokenOutOfRange,
)
from chairlift.core.load_report import ReplicaState
from chairlift.core.request import EngineOutput, FinishReason
from chairlift.engine.client.base import EngineClient
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.client.process import ProcessClient, connect, start_engine_process
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.ipc.liveness import LivenessConfig
from chairlift.engine.ipc.spawn import spawn
from chairlift.engine.runner.fake import FakeConfig, FakeRunner, expected_tokens
from chairlift.engine.stats import StepStats
from support_process import (
    BRISK,
    PATIENCE,
    PRINT,
    TESTS,
    News,
    broken_start,
    child_environment,
    endless_start,
    endless_warmup,
    engine,
    fake_spec,
    faulty,
    is_gone,
    make_request,
    no_model,
    pid_of,
    python_command,
    slow_start,
    slow_warmup,
    socket_of,
    spec_of,
    wait_until,
    works,
)

SLOW = FakeConfig(seconds_per_step=0.02)


@pytest.fixture(autouse=True)
def _children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])


def mixed_requests(count: int, seed: int) -> list[Any]:
    """Requests of all lengths, some with a shared prefix, logprobs, a stop token, a tenant, or an error."""
    dice = random.Random(seed)
    shared = tuple(dice.randrange(200) for _ in range(40))
    requests = []
    for number in range(count):
        prompt = (shared if dice.random() < 0.4 else ()) + tuple(
            dice.randrange(200) for _ in range(dice.randint(1, 60))
        )
        if number % 17 == 5:
            prompt += (254,)
        fields: dict[str, Any] = {"max_tokens": dice.randint(1, 40), "temperature": dice.choice((0, 1))}
        if dice.random() < 0.3:
            fields["logprobs"] = dice.randint(0, 5)
        if dice.random() < 0.3:
            fields["stop_token_ids"] = tuple(range(0, 256, 16))
        if dice.random() < 0.2:
            fields |= {"tenant": "other", "logit_bias": {3: 1.0}}
        requests.append(make_request(f"r{number}", prompt, **fields))
    return requests


def outcome(client: EngineClient, requests: list[Any]) -> dict[str, tuple[Any, ...]]:
    """Run requests; return the result of each, without times."""
    news = News()
    for request in requests:
        client.submit(request, news)
    result = {}
    for request in requests:
        last = news.end(request.request_id)
        parts = [part for batch in list(news.batches) for part in batch if part.request_id == request.request_id]
        logprobs = tuple(entry for part in parts for entry in part.logprobs)
        said = None if last.error is None else (type(last.error), str(last.error), last.error.details)
        counts = last.usage and (last.usage.prompt_tokens, last.usage.completion_tokens)
        assert last.timeline is not None and last.timeline.events[0].name == "queued"
        result[request.request_id] = (news.tokens[request.request_id], logprobs, last.finish_reason, said, counts)
    return result


@pytest.mark.parametrize("overlap", [False, True])
def test_outputs_equal_those_of_an_inline_engine_and_of_none(overlap: bool) -> None:
    fake, config = FakeConfig(num_blocks=64, nan=254), SchedulerConfig(max_running_requests=32, overlap=overlap)
    requests = mixed_requests(120, seed=1)
    inline = InlineClient(EngineLoop(FakeRunner(fake), config))
    try:
        wanted = outcome(inline, requests)
    finally:
        inline.close()
    with engine(fake_spec(fake), config) as client:
        got = outcome(client, requests)
        assert client.check_integrity() == []
        assert client.info == inline.info and client.limits == inline.limits
    assert got == wanted
    faults = {name for name, (_, _, reason, _, _) in got.items() if reason is FinishReason.ERROR}
    assert faults >= {f"r{number}" for number in range(5, 120, 17)}, "and those that draw the bad token"
    assert len(faults) < 60
    for request in requests:
        if request.request_id not in faults:
            assert got[request.request_id][0] == expected_tokens(request.prompt_token_ids, request.params, fake)


def test_a_sink_that_reads_gets_one_list_a_step() -> None:
    with engine(fake_spec(SLOW)) as client:
        first, second = News(), News()
        for number in range(8):
            client.submit(make_request(f"a{number}", max_tokens=10), first)
        client.submit(make_request("b", max_tokens=10), second)
        for number in range(8):
            first.end(f"a{number}")
        second.end("b")
        assert len(first.batches) < 20 and max(len(batch) for batch in first.batches) == 8
        assert {output.request_id for batch in second.batches for output in batch} == {"b"}


def test_a_slow_sink_gets_everything_in_few_large_lists() -> None:
    fake = FakeConfig(max_model_len=4096)
    with engine(fake_spec(fake)) as client:
        news = News()

        def slow(outputs: list[EngineOutput]) -> None:
            time.sleep(0.005)
            news(outputs)

        requests = [make_request(f"r{number}", (number,), max_tokens=1500) for number in range(4)]
        for request in requests:
            client.submit(request, slow)
        for request in requests:
            assert news.end(request.request_id).finish_reason is FinishReason.LENGTH
            wanted = expected_tokens(request.prompt_token_ids, request.params, fake)
            assert news.tokens[request.request_id] == wanted
        assert len(news.batches) < 1500 and client.restarts == 0


def test_a_sink_that_raises_affects_no_other_request() -> None:
    def bad(outputs: list[EngineOutput]) -> None:
        raise RuntimeError("a bad sink")

    with engine() as client:
        client.submit(make_request("bad"), bad)
        assert works(client)


def test_impossible_requests_are_refused_before_they_are_queued() -> None:
    with engine() as client:
        news = News()
        with pytest.raises(TokenOutOfRange):
            client.submit(make_request("a", (256,)), news)
        with pytest.raises(ContextLengthExceeded):
            client.submit(make_request("a", (1,) * 1024), news)
        with pytest.raises(InvalidRequest, match="surrogates not allowed"):
            client.submit(make_request("a", tenant="\ud800"), news)
        assert news.batches == [] and works(client)


def test_an_id_that_is_open_is_refused_and_free_again_afterwards() -> None:
    with engine(fake_spec(SLOW)) as client:
        news = News()
        client.submit(make_request("same", max_tokens=30), news)
        with pytest.raises(DuplicateRequestId, match="'same'"):
            client.submit(make_request("same"), news)
        news.end("same")
        assert works(client, "same")


def test_faults_inside_a_step_come_as_themselves() -> None:
    with engine(fake_spec(FakeConfig(nan=254, poison=255))) as client:
        news = News()
        client.submit(make_request("nan", (1, 254)), news)
        client.submit(make_request("poison", (1, 255)), news)
        client.submit(make_request("good", (1, 2)), news)
        assert type(news.end("nan").error) is NonFiniteLogits
        assert type(news.end("poison").error) is ForwardFailed
        assert news.end("good").finish_reason is FinishReason.LENGTH


def test_a_full_queue_is_a_typed_last_output() -> None:
    config = SchedulerConfig(max_queue_size=2, max_running_requests=1)
    with engine(fake_spec(SLOW), config) as client:
        news = News()
        client.submit(make_request("rides", max_tokens=100), news)
        news.wait(lambda: "rides" in news.tokens)
        for number in range(4):
            client.submit(make_request(f"r{number}", max_tokens=1), news)
        error = news.end("r3").error
        assert type(error) is QueueFull and error.retryable
        assert error.details == {"waiting": 2, "limit": 2}
        client.abort("rides")
        assert news.end("r0").finish_reason is FinishReason.LENGTH


def test_an_abort_ends_a_request_once_and_frees_its_blocks() -> None:
    with engine(fake_spec(SLOW)) as client:
        news = News()
        client.submit(make_request("a", max_tokens=1000), news)
        news.wait(lambda: len(news.tokens.get("a", [])) > 2)
        client.abort("a")
        client.abort("a")
        client.abort("never was")
        last = news.end("a")
        assert last.finish_reason is FinishReason.ABORT and last.usage is not None and last.usage.completion_tokens > 2
        assert client.cache_state()["allocated_blocks"] == 0 and client.check_integrity() == []


def test_a_request_ends_when_its_own_time_is_up() -> None:
    with engine(fake_spec(SLOW)) as client:
        news = News()
        client.submit(make_request("a", max_tokens=1000, timeout=0.2), news)
        error = news.end("a").error
        assert type(error) is RequestTimeout and error.details == {"timeout": 0.2}


def test_questions_are_answered() -> None:
    with engine(fake_spec(SLOW), SchedulerConfig(max_running_requests=1)) as client:
        news = News()
        client.submit(make_request("rides", (1,) * 40, max_tokens=500), news)
        client.submit(make_request("waits", max_tokens=1), news)
        news.wait(lambda: "rides" in news.tokens)
        state = client.scheduler_state()
        assert (state["waiting_requests"], state["active_requests"], state["waiting_order"]) == (1, 1, ["waits"])
        assert state["wait_reasons"] == {"waits": "running_limit"}
        assert state["states"] == {"rides": "decoding", "waits": "pending"}
        load = client.load()
        assert (load.state, load.waiting_requests, load.running_requests) == (ReplicaState.READY, 1, 1)
        assert client.cache_state()["allocated_blocks"] >= 3
        client.abort("rides")
        news.end("waits")
        assert client.flush_cache() >= 2
        assert client.cache_state()["cached_blocks"] == 0


def test_the_state_is_returned_without_a_remote_call() -> None:
    with engine(fake_spec(FakeConfig(seconds_per_step=2))) as client:
        client.submit(make_request("a"), News())
        wait_until(lambda: client.load().step_age_seconds > 0)
        assert (client.state, client.restarts) == (ReplicaState.READY, 0)
    assert (client.state, client.restarts) == (ReplicaState.STOPPED, 0)


def test_a_salt_crosses_the_border() -> None:
    with engine() as client:
        cached = []
        for number, salt in enumerate(("", "s", "t", "s", "")):
            news = News()
            client.submit(make_request(f"r{number}", tuple(range(1, 101)), max_tokens=1, cache_salt=salt), news)
            usage = news.end(f"r{number}").usage
            assert usage is not None
            cached.append(usage.cached_tokens > 0)
        assert cached == [False, False, False, True, True]


def test_every_step_is_shown_across_the_border_before_its_outputs() -> None:
    heard: list[Any] = []
    with engine() as client:
        client.watch_steps(heard.append)
        news = News()
        client.submit(make_request("a", max_tokens=20), lambda outputs: (heard.append(outputs), news(outputs)))
        news.end("a")
        steps = [thing for thing in heard if isinstance(thing, StepStats)]
        assert [stats.step_id for stats in steps] == list(range(20))
        assert heard.index(steps[-1]) < len(heard) - 1
        assert [stats.num_tokens for stats in steps] == [3] + [1] * 19
        assert all(first.ended_ms <= second.ended_ms for first, second in itertools.pairwise(steps))
        client.watch_steps(None)
        before = len(steps)
        assert works(client)
        assert len([thing for thing in heard if isinstance(thing, StepStats)]) == before


def test_an_engine_that_is_started_again_is_watched_again() -> None:
    told: list[StepStats] = []
    with engine() as client:
        client.watch_steps(told.append)
        assert works(client) and len(told) == 3
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.restarts == 1 and client.load().state is ReplicaState.READY)
        assert works(client) and [stats.step_id for stats in told[3:]] == [0, 1, 2]


def test_a_stats_sink_that_raises_affects_no_request(caplog: pytest.LogCaptureFixture) -> None:
    def raises(stats: StepStats) -> None:
        raise RuntimeError("not mine")

    with engine() as client:
        client.watch_steps(raises)
        assert works(client) and works(client, "again")
        assert client.restarts == 0
    assert "a step stats sink raised" in caplog.text


def test_a_warm_up_is_no_hang_and_changes_nothing() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, step_timeout=0.4, call_timeout=0.4)
    with engine(spec_of(slow_warmup, FakeConfig(seconds_per_step=0.01)), watch=watch) as client:
        news, request = News(), make_request("a", max_tokens=60)
        client.submit(request, news)
        news.wait(lambda: "a" in news.tokens)
        assert client.warmup() >= 1.0
        assert news.end("a").finish_reason is FinishReason.LENGTH
        assert news.tokens["a"] == expected_tokens(request.prompt_token_ids, request.params, FakeConfig())
        load = client.load()
        assert (load.steps, load.output_tokens, load.prompt_tokens) == (60, 60, 3)
        assert client.restarts == 0 and client.check_integrity() == []


def warm_up(client: ProcessClient, said: list[Exception]) -> threading.Thread:
    """Start a warm-up in a thread; returns when a heartbeat reports it."""

    def work() -> None:
        try:
            client.warmup()
        except EngineDead as error:
            said.append(error)

    warming = threading.Thread(target=work, daemon=True)
    warming.start()
    wait_until(lambda: client._connection is not None and client._connection._warmup_age > 0)
    return warming


def test_a_warm_up_that_hangs_is_seen_and_the_engine_is_started_again() -> None:
    watch, said = LivenessConfig(heartbeat_timeout=2.0, stop_timeout=2.0), list[Exception]()
    with engine(spec_of(endless_warmup), watch=watch) as client:
        warming, news, states = warm_up(client, said), News(), list[ReplicaState]()
        client.submit(make_request("a"), news)
        asking = threading.Thread(target=lambda: states.append(client.load().state), daemon=True)
        asking.start()
        asking.join(PATIENCE)
        assert states == [ReplicaState.READY], "counts do not wait for a warm-up"
        connection = client._connection
        assert connection is not None and not said
        connection._watch = replace(watch, start_timeout=0.5)  # only now: this start has its time
        warming.join(PATIENCE)
        (error,) = said
        assert "hangs: a warm-up takes" in str(error) and "the limit is 0.5 s" in str(error)
        assert "a warm-up takes" in str(news.end("a").error)
        wait_until(lambda: client.restarts == 1)
        assert works(client)


def test_the_questions_of_others_wait_for_a_warm_up_and_have_their_own_limit_then() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, call_timeout=0.4)
    with engine(spec_of(slow_warmup), watch=watch) as client:
        assert client.process is not None
        other, said = connect(client.process.address, watch=watch), list[Exception]()
        try:
            warming = warm_up(other, said)
            wait_until(lambda: client._connection is not None and client._connection._warmup_age > 0)
            assert client.check_integrity() == [] and other.cache_state()["total_blocks"] > 0
            warming.join(PATIENCE)
            assert not said and client.restarts == 0
        finally:
            other.close()


def test_a_long_step_delays_answers_but_load_uses_the_last_heartbeat() -> None:
    with engine(fake_spec(FakeConfig(seconds_per_step=2.5)), watch=LivenessConfig(heartbeat_timeout=1.5)) as client:
        news = News()
        client.submit(make_request("a", max_tokens=1), news)
        ages = []
        while "a" not in news.ends and len(ages) < 20:
            ages.append(client.load().step_age_seconds)
        assert max(ages) > 0
        assert news.end("a").finish_reason is FinishReason.LENGTH
        assert client.restarts == 0


def test_a_step_longer_than_the_heartbeat_timeout_is_no_hang() -> None:
    watch = LivenessConfig(heartbeat_timeout=1.0)
    with engine(fake_spec(FakeConfig(seconds_per_step=2.0)), watch=watch) as client:
        pid, news = pid_of(client), News()
        client.submit(make_request("a", max_tokens=1), news)
        assert news.end("a").finish_reason is FinishReason.LENGTH
        assert client.restarts == 0 and pid_of(client) == pid


def test_two_clients_may_use_equal_request_ids_on_one_engine() -> None:
    with engine(fake_spec(SLOW), SchedulerConfig(max_running_requests=2)) as first:
        assert first.process is not None
        second = connect(first.process.address, watch=BRISK)
        try:
            assert second.info == first.info and second.process is None
            here, there = News(), News()
            one, two = make_request("same", (1, 2), max_tokens=60), make_request("same", (3, 4), max_tokens=500)
            first.submit(one, here)
            second.submit(two, there)
            here.wait(lambda: "same" in here.tokens)
            there.wait(lambda: "same" in there.tokens)
            second.submit(make_request("waits"), there)
            assert second.scheduler_state()["waiting_order"] == ["waits"]
            assert first.scheduler_state()["waiting_order"] == ["client 2: waits"]
            assert here.end("same").finish_reason is FinishReason.LENGTH
            assert here.tokens["same"] == expected_tokens((1, 2), one.params, SLOW)
            first.abort("same")
            assert there.ends.get("same") is None, "another client's request is not touched"
            there.wait(lambda: len(there.tokens["same"]) > 20)
            assert there.tokens["same"] == expected_tokens((3, 4), two.params, SLOW)[: len(there.tokens["same"])]
        finally:
            second.close()
        assert works(first), "the engine stays when a client leaves"
        assert first.load().running_requests == 0, "and the requests of the client that left are gone"


def test_two_engines_on_one_host_do_not_meet() -> None:
    with engine(fake_spec(FakeConfig(seed=1))) as one, engine(fake_spec(FakeConfig(seed=2))) as two:
        assert socket_of(one) != socket_of(two) and pid_of(one) != pid_of(two)
        request = make_request("r", max_tokens=10)
        assert outcome(one, [request])["r"][0] == expected_tokens((1, 2, 3), request.params, FakeConfig(seed=1))
        assert outcome(two, [request])["r"][0] == expected_tokens((1, 2, 3), request.params, FakeConfig(seed=2))


def test_the_socket_lies_in_a_folder_of_this_user_alone() -> None:
    with engine() as client:
        assert socket_of(client).parent.stat().st_mode & 0o777 == 0o700


# -- start and close -------------------------------------------------------------------------------------------------


def test_a_model_that_cannot_be_loaded_is_a_typed_error_of_the_constructor() -> None:
    with pytest.raises(ModelError, match=r"model.safetensors is truncated: 10 bytes of 4096") as caught:
        start_engine_process(spec_of(no_model), SchedulerConfig(), watch=BRISK)
    assert caught.value.details == {"file": "model.safetensors", "size": 10}
    assert type(caught.value) is ModelError


def test_any_other_failure_to_start_is_engine_dead_with_its_sentence() -> None:
    with pytest.raises(EngineDead, match="did not start: ZeroDivisionError: nobody expected this"):
        start_engine_process(spec_of(broken_start), SchedulerConfig(), watch=BRISK)


def test_a_factory_that_is_not_there_is_named() -> None:
    with pytest.raises(Exception, match=r"no runner factory 'chairlift\.engine\.runner\.fake:nothing'") as caught:
        start_engine_process(type(fake_spec())("chairlift.engine.runner.fake:nothing"), SchedulerConfig(), watch=BRISK)
    assert caught.value.code == "config_error"  # type: ignore[attr-defined]


def test_an_engine_that_never_starts_is_given_up() -> None:
    watch = LivenessConfig(heartbeat_timeout=2.0, start_timeout=1.0, stop_timeout=2.0)
    with pytest.raises(EngineDead, match="did not start within 1 s"):
        start_engine_process(spec_of(endless_start), SchedulerConfig(), watch=watch)


def test_an_engine_may_take_its_time_to_start() -> None:
    with engine(spec_of(slow_start), watch=LivenessConfig(heartbeat_timeout=1.0)) as client:
        assert works(client) and client.restarts == 0


def test_an_address_without_an_engine_is_engine_dead(tmp_path: Path) -> None:
    watch = LivenessConfig(heartbeat_timeout=0.5, start_heartbeat_timeout=0.3)
    with pytest.raises(EngineDead, match="silent"):
        connect(f"ipc://{tmp_path}/nobody", watch=watch)


def test_close_ends_open_requests_and_can_be_called_again() -> None:
    with engine(fake_spec(SLOW)) as client:
        news, pid, socket = News(), pid_of(client), socket_of(client)
        client.submit(make_request("a", max_tokens=1000), news)
        news.wait(lambda: "a" in news.tokens)
        client.close()
        client.close()
        error = news.end("a").error
        assert type(error) is EngineDead and "closed" in str(error)
        assert is_gone(pid) and not socket.exists() and not socket.parent.exists()
        with pytest.raises(EngineDead, match="closed"):
            client.submit(make_request("b"), news)
        with pytest.raises(EngineDead, match="closed"):
            client.check_integrity()
        client.abort("a")
        assert client.load().state is ReplicaState.STOPPED
    assert len(news.ends["a"]) == 1


def test_a_sink_may_close_the_client() -> None:
    with engine() as client:
        pid = pid_of(client)
        client.submit(make_request("a"), lambda outputs: client.close())
        deadline = time.monotonic() + PATIENCE
        while not is_gone(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_gone(pid)


def test_twenty_engines_leave_nothing_behind() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with engine() as client:
        assert works(client)
    before, threads, pids, folders = descriptors(), threading.active_count(), [], []
    for _ in range(20):
        with engine() as client:
            pids.append(pid_of(client))
            folders.append(socket_of(client).parent)
    assert descriptors() == before
    assert threading.active_count() == threads
    assert all(is_gone(pid) for pid in pids) and not any(folder.exists() for folder in folders)


def test_an_engine_can_be_spawned_without_a_client() -> None:
    process = spawn(fake_spec(), SchedulerConfig(), watch=BRISK)
    try:
        client = connect(process.address, watch=BRISK)
        try:
            assert works(client)
        finally:
            client.close()
        assert process.exit_code is None
    finally:
        process.stop()
    assert process.exit_code == 0


def test_what_the_runner_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with engine(spec_of(faulty)) as client:
        news = News()
        client.submit(make_request("a", (PRINT,)), news)
        news.end("a")
    said = capfd.readouterr()
    assert "the runner prints this" not in said.out


# -- scripts ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
print("imported", flush=True)
from support_process import *
client = start_engine_process(fake_spec(), SchedulerConfig(), watch=BRISK)
assert works(client)
print(pid_of(client), socket_of(client), flush=True)
{end}
"""


def run_script(tmp_path: Path, end: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(TESTS), end=end))
    (tmp_path / "msgspec.py").write_text("raise ImportError('the current folder is none of the engine\\'s business')")
    command = [*python_command("import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"), str(script)]
    command[1:1] = ["-P"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)


@pytest.mark.parametrize("end", ["client.close()", "", "import atexit; atexit.register(client.close)", "1 / 0"])
def test_a_script_without_a_main_guard_runs_once_and_leaves_nothing(tmp_path: Path, end: str) -> None:
    done = run_script(tmp_path, end)
    assert done.stdout.count("imported") == 1, done.stdout + done.stderr
    assert (done.returncode == 0) == (end != "1 / 0"), done.stderr
    pid, socket = done.stdout.splitlines()[1].split()
    deadline = time.monotonic() + PATIENCE
    while not (is_gone(int(pid)) and not Path(socket).parent.exists()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_gone(int(pid)) and not Path(socket).parent.exists()
