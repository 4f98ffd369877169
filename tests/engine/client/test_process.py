"""ProcessClient: the outputs of an engine in another process equal those of InlineClient and of no engine at all."""

import itertools
import os
import random
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    ForwardFailed,
    InvalidRequest,
    NonFiniteLogits,
    QueueFull,
    RequestTimeout,
    TokenOutOfRange,
)
from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.base import EngineClient
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.client.process import connect
from chairlift.engine.config import SchedulerConfig, SpeculationConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from chairlift.engine.step_stats import StepStats
from support_process import (
    FAST_LIVENESS,
    HOLD_LOCK,
    RecordingSink,
    can_generate,
    engine,
    fake_spec,
    faulty,
    make_request,
    pid_of,
    socket_of,
    spec_of,
    wait_until,
    with_all_drafts,
)

SLOW = FakeConfig(seconds_per_step=0.02)


pytestmark = pytest.mark.usefixtures("children_import_tests")


def mixed_requests(count: int, seed: int) -> list[Any]:
    """Make requests of all lengths, some with a shared prefix, logprobs, a stop token, a tenant, or an error."""
    rng = random.Random(seed)
    shared = tuple(rng.randrange(200) for _ in range(40))
    requests = []
    for number in range(count):
        prompt = (shared if rng.random() < 0.4 else ()) + tuple(rng.randrange(200) for _ in range(rng.randint(1, 60)))
        if number % 17 == 5:
            prompt += (254,)
        fields: dict[str, Any] = {"max_tokens": rng.randint(1, 40), "temperature": rng.choice((0, 1))}
        if rng.random() < 0.3:
            fields["logprobs"] = rng.randint(0, 5)
        if rng.random() < 0.3:
            fields["stop_token_ids"] = tuple(range(0, 256, 16))
        if rng.random() < 0.2:
            fields |= {"tenant": "other", "logit_bias": {3: 1.0}}
        requests.append(make_request(f"r{number}", prompt, **fields))
    return requests


def run_requests(client: EngineClient, requests: list[Any]) -> dict[str, tuple[Any, ...]]:
    """Run requests; return the result of each, without times."""
    sink = RecordingSink()
    for request in requests:
        client.submit(request, sink)
    result = {}
    for request in requests:
        last = sink.end(request.request_id)
        parts = [part for batch in list(sink.batches) for part in batch if part.request_id == request.request_id]
        logprobs = tuple(entry for part in parts for entry in part.logprobs)
        error = None if last.error is None else (type(last.error), str(last.error), last.error.details)
        counts = last.usage and (last.usage.prompt_tokens, last.usage.completion_tokens)
        assert last.timeline is not None and last.timeline.events[0].name == "queued"
        result[request.request_id] = (sink.tokens[request.request_id], logprobs, last.finish_reason, error, counts)
    return result


@pytest.mark.share(1)
@pytest.mark.parametrize("overlap", [False, True])
def test_outputs_equal_those_of_an_inline_engine_and_of_none(overlap: bool) -> None:
    fake, config = FakeConfig(num_blocks=64, nan=254), SchedulerConfig(max_running_requests=32, overlap=overlap)
    requests = mixed_requests(120, seed=1)
    inline = InlineClient(EngineLoop(FakeRunner(fake), config))
    try:
        expected = run_requests(inline, requests)
    finally:
        inline.close()
    with engine(fake_spec(fake), config) as client:
        results = run_requests(client, requests)
        assert client.check_integrity() == []
        assert client.info == inline.info and client.limits == inline.limits
    assert results == expected
    failed = {name for name, (_, _, reason, _, _) in results.items() if reason is FinishReason.ERROR}
    assert failed >= {f"r{number}" for number in range(5, 120, 17)}, "also the requests that sample the NaN token fail"
    assert len(failed) < 60
    for request in requests:
        if request.request_id not in failed:
            assert results[request.request_id][0] == expected_tokens(request.prompt_token_ids, request.params, fake)


def test_a_sink_that_reads_gets_one_list_a_step() -> None:
    with engine(fake_spec(SLOW)) as client:
        first, second = RecordingSink(), RecordingSink()
        for number in range(8):
            client.submit(make_request(f"a{number}", max_tokens=10), first)
        client.submit(make_request("b", max_tokens=10), second)
        for number in range(8):
            first.end(f"a{number}")
        second.end("b")
        assert len(first.batches) < 20 and max(len(batch) for batch in first.batches) == 8
        assert {output.request_id for batch in second.batches for output in batch} == {"b"}


@pytest.mark.full
def test_a_slow_sink_gets_everything_in_few_large_lists() -> None:
    fake = FakeConfig(max_model_len=4096)
    with engine(fake_spec(fake)) as client:
        sink = RecordingSink()

        def slow(outputs: list[EngineOutput]) -> None:
            time.sleep(0.005)
            sink(outputs)

        requests = [make_request(f"r{number}", (number,), max_tokens=1500) for number in range(4)]
        for request in requests:
            client.submit(request, slow)
        for request in requests:
            assert sink.end(request.request_id).finish_reason is FinishReason.LENGTH
            expected = expected_tokens(request.prompt_token_ids, request.params, fake)
            assert sink.tokens[request.request_id] == expected
        assert len(sink.batches) < 1500 and client.restarts == 0


def test_a_sink_that_raises_affects_no_other_request() -> None:
    def bad(outputs: list[EngineOutput]) -> None:
        raise RuntimeError("a bad sink")

    with engine() as client:
        client.submit(make_request("bad"), bad)
        assert can_generate(client)


def test_impossible_requests_are_refused_before_they_are_queued() -> None:
    with engine() as client:
        sink = RecordingSink()
        with pytest.raises(TokenOutOfRange):
            client.submit(make_request("a", (256,)), sink)
        with pytest.raises(ContextLengthExceeded):
            client.submit(make_request("a", (1,) * 1024), sink)
        with pytest.raises(InvalidRequest, match="surrogates not allowed"):
            client.submit(make_request("a", tenant="\ud800"), sink)
        assert sink.batches == [] and can_generate(client)


def test_an_id_that_is_open_is_refused_and_free_again_afterwards() -> None:
    with engine(fake_spec(SLOW)) as client:
        sink = RecordingSink()
        client.submit(make_request("same", max_tokens=30), sink)
        with pytest.raises(DuplicateRequestId, match="'same'"):
            client.submit(make_request("same"), sink)
        sink.end("same")
        assert can_generate(client, "same")


def test_faults_inside_a_step_come_as_themselves() -> None:
    with engine(fake_spec(FakeConfig(nan=254, poison=255))) as client:
        sink = RecordingSink()
        client.submit(make_request("nan", (1, 254)), sink)
        client.submit(make_request("poison", (1, 255)), sink)
        client.submit(make_request("good", (1, 2)), sink)
        assert type(sink.end("nan").error) is NonFiniteLogits
        assert type(sink.end("poison").error) is ForwardFailed
        assert sink.end("good").finish_reason is FinishReason.LENGTH


def test_a_full_queue_is_a_typed_last_output() -> None:
    config = SchedulerConfig(max_queue_size=2, max_running_requests=1)
    with engine(fake_spec(SLOW), config) as client:
        sink = RecordingSink()
        client.submit(make_request("runs", max_tokens=100), sink)
        sink.wait(lambda: "runs" in sink.tokens)
        for number in range(4):
            client.submit(make_request(f"r{number}", max_tokens=1), sink)
        error = sink.end("r3").error
        assert type(error) is QueueFull and error.retryable
        assert error.details == {"waiting": 2, "limit": 2}
        client.abort("runs")
        assert sink.end("r0").finish_reason is FinishReason.LENGTH


def test_an_abort_ends_a_request_once_and_frees_its_blocks() -> None:
    with engine(fake_spec(SLOW)) as client:
        sink = RecordingSink()
        client.submit(make_request("a", max_tokens=1000), sink)
        sink.wait(lambda: len(sink.tokens.get("a", [])) > 2)
        client.abort("a")
        client.abort("a")
        client.abort("unknown")
        last = sink.end("a")
        assert last.finish_reason is FinishReason.ABORT and last.usage is not None and last.usage.completion_tokens > 2
        assert client.cache_state()["allocated_blocks"] == 0 and client.check_integrity() == []


def test_a_request_ends_when_its_own_time_is_up() -> None:
    with engine(fake_spec(SLOW)) as client:
        sink = RecordingSink()
        client.submit(make_request("a", max_tokens=1000, timeout=0.2), sink)
        error = sink.end("a").error
        assert type(error) is RequestTimeout and error.details == {"timeout": 0.2}


def test_calls_get_replies() -> None:
    with engine(fake_spec(SLOW), SchedulerConfig(max_running_requests=1)) as client:
        sink = RecordingSink()
        client.submit(make_request("runs", (1,) * 40, max_tokens=500), sink)
        client.submit(make_request("waits", max_tokens=1), sink)
        sink.wait(lambda: "runs" in sink.tokens)
        state = client.scheduler_state()
        assert (state["waiting_requests"], state["active_requests"], state["waiting_order"]) == (1, 1, ["waits"])
        assert state["wait_reasons"] == {"waits": "running_limit"}
        assert state["states"] == {"runs": "decoding", "waits": "pending"}
        load = client.load()
        assert (load.state, load.waiting_requests, load.running_requests) == (ReplicaState.READY, 1, 1)
        assert client.cache_state()["allocated_blocks"] >= 3
        client.abort("runs")
        sink.end("waits")
        assert client.flush_cache() >= 2
        assert client.cache_state()["cached_blocks"] == 0


def test_the_state_is_returned_without_a_remote_call() -> None:
    with engine(fake_spec(FakeConfig(seconds_per_step=2))) as client:
        client.submit(make_request("a"), RecordingSink())
        wait_until(lambda: client.load().step_age_seconds > 0)
        assert (client.state, client.restarts, client.is_hanging) == (ReplicaState.READY, 0, False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_connection", SimpleNamespace(hang_reason="the engine hangs"))
            assert client.is_hanging
    assert (client.state, client.restarts, client.is_hanging) == (ReplicaState.STOPPED, 0, False)


def test_a_cache_salt_reaches_the_engine_process() -> None:
    with engine() as client:
        cached = []
        for number, salt in enumerate(("", "s", "t", "s", "")):
            sink = RecordingSink()
            client.submit(make_request(f"r{number}", tuple(range(1, 101)), max_tokens=1, cache_salt=salt), sink)
            usage = sink.end(f"r{number}").usage
            assert usage is not None
            cached.append(usage.cached_tokens > 0)
        assert cached == [False, False, False, True, True]


def test_a_prediction_reaches_the_engine_process_and_its_counts_come_back() -> None:
    config = SchedulerConfig(speculation=SpeculationConfig(method="prediction", num_speculative_tokens=4))
    with engine(spec_of(with_all_drafts), config) as client:
        sink = RecordingSink()
        client.submit(make_request("plain", max_tokens=30, seed=1), sink)
        plain = sink.end("plain").usage
        assert plain is not None and plain.accepted_prediction_tokens == plain.rejected_prediction_tokens == 0
        predicted = (*sink.tokens["plain"][:22], 1, 1, 1)
        client.submit(make_request("a", max_tokens=30, seed=1, predicted_token_ids=predicted), sink)
        usage = sink.end("a").usage
        assert sink.tokens["a"] == sink.tokens["plain"] and usage is not None
        assert usage.accepted_prediction_tokens > 8 and 0 < usage.rejected_prediction_tokens <= 4


def test_every_step_arrives_before_its_outputs() -> None:
    events: list[Any] = []
    with engine() as client:
        client.watch_steps(events.append)
        sink = RecordingSink()
        client.submit(make_request("a", max_tokens=20), lambda outputs: (events.append(outputs), sink(outputs)))
        sink.end("a")
        steps = [event for event in events if isinstance(event, StepStats)]
        assert [stats.step_id for stats in steps] == list(range(20))
        assert events.index(steps[-1]) < len(events) - 1
        assert [stats.num_tokens for stats in steps] == [3] + [1] * 19
        assert all(first.ended_ms <= second.ended_ms for first, second in itertools.pairwise(steps))
        client.watch_steps(None)
        before = len(steps)
        assert can_generate(client)
        assert len([event for event in events if isinstance(event, StepStats)]) == before


def test_an_engine_that_is_started_again_is_watched_again() -> None:
    step_stats: list[StepStats] = []
    with engine() as client:
        client.watch_steps(step_stats.append)
        assert can_generate(client) and len(step_stats) == 3
        os.kill(pid_of(client), signal.SIGKILL)
        wait_until(lambda: client.restarts == 1 and client.load().state is ReplicaState.READY)
        assert can_generate(client) and [stats.step_id for stats in step_stats[3:]] == [0, 1, 2]


def test_a_stats_sink_that_raises_affects_no_request(caplog: pytest.LogCaptureFixture) -> None:
    def raises(stats: StepStats) -> None:
        raise RuntimeError("a bad sink")

    with engine() as client:
        client.watch_steps(raises)
        assert can_generate(client) and can_generate(client, "again")
        assert client.restarts == 0
    assert "a step stats sink raised" in caplog.text


def test_a_long_step_delays_replies_but_load_uses_the_last_heartbeat() -> None:
    with engine(fake_spec(FakeConfig(seconds_per_step=2.5)), watch=LivenessConfig(heartbeat_timeout=1.5)) as client:
        sink = RecordingSink()
        client.submit(make_request("a", max_tokens=1), sink)
        ages = []
        while "a" not in sink.ends and len(ages) < 20:
            ages.append(client.load().step_age_seconds)
        assert max(ages) > 0
        assert sink.end("a").finish_reason is FinishReason.LENGTH
        assert client.restarts == 0


def test_a_step_longer_than_the_heartbeat_timeout_is_no_hang() -> None:
    watch = LivenessConfig(heartbeat_timeout=1.0)
    with engine(fake_spec(FakeConfig(seconds_per_step=2.0)), watch=watch) as client:
        pid, sink = pid_of(client), RecordingSink()
        client.submit(make_request("a", max_tokens=1), sink)
        assert sink.end("a").finish_reason is FinishReason.LENGTH
        assert client.restarts == 0 and pid_of(client) == pid


def test_a_step_that_works_and_holds_the_lock_of_python_is_no_silence() -> None:
    with engine(spec_of(faulty), watch=LivenessConfig(heartbeat_timeout=0.5)) as client:
        pid, sink = pid_of(client), RecordingSink()
        client.submit(make_request("a", (HOLD_LOCK,), max_tokens=1), sink)
        assert sink.end("a").finish_reason is FinishReason.LENGTH
        assert client.restarts == 0 and pid_of(client) == pid


def test_two_clients_may_use_equal_request_ids_on_one_engine() -> None:
    with engine(fake_spec(SLOW), SchedulerConfig(max_running_requests=2)) as first:
        assert first.process is not None
        second = connect(first.process.address, watch=FAST_LIVENESS)
        try:
            assert second.info == first.info and second.process is None
            first_sink, second_sink = RecordingSink(), RecordingSink()
            one, two = make_request("same", (1, 2), max_tokens=60), make_request("same", (3, 4), max_tokens=500)
            first.submit(one, first_sink)
            second.submit(two, second_sink)
            first_sink.wait(lambda: "same" in first_sink.tokens)
            second_sink.wait(lambda: "same" in second_sink.tokens)
            second.submit(make_request("waits"), second_sink)
            assert second.scheduler_state()["waiting_order"] == ["waits"]
            assert first.scheduler_state()["waiting_order"] == ["client 2: waits"]
            assert first_sink.end("same").finish_reason is FinishReason.LENGTH
            assert first_sink.tokens["same"] == expected_tokens((1, 2), one.params, SLOW)
            first.abort("same")
            assert second_sink.ends.get("same") is None, "another client's request goes on"
            second_sink.wait(lambda: len(second_sink.tokens["same"]) > 20)
            assert (
                second_sink.tokens["same"]
                == expected_tokens((3, 4), two.params, SLOW)[: len(second_sink.tokens["same"])]
            )
        finally:
            second.close()
        assert can_generate(first), "the engine goes on when a client disconnects"
        assert first.load().running_requests == 0, "the requests of the disconnected client have ended"


def test_two_engines_on_one_host_do_not_meet() -> None:
    with engine(fake_spec(FakeConfig(seed=1))) as one, engine(fake_spec(FakeConfig(seed=2))) as two:
        assert socket_of(one) != socket_of(two) and pid_of(one) != pid_of(two)
        request = make_request("r", max_tokens=10)
        assert run_requests(one, [request])["r"][0] == expected_tokens((1, 2, 3), request.params, FakeConfig(seed=1))
        assert run_requests(two, [request])["r"][0] == expected_tokens((1, 2, 3), request.params, FakeConfig(seed=2))


def test_the_socket_lies_in_a_folder_of_this_user_alone() -> None:
    with engine() as client:
        assert socket_of(client).parent.stat().st_mode & 0o777 == 0o700
