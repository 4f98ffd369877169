"""Telemetry: what happens is what the page shows, number for number, and its labels stay few."""

import os
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import Timeline, TimelineEvent, Usage
from chairlift.engine.stats import CacheState, StepStats
from chairlift.observability.metric_aliases import ALIAS_SETS
from chairlift.server import telemetry as module
from chairlift.server.telemetry import MAX_RECORDS, Telemetry
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController, AdmissionLimits

CACHE: CacheState = {
    "total_blocks": 100, "free_blocks": 50, "cached_blocks": 20, "allocated_blocks": 30, "block_size": 16,
    "memory_utilization": 0.3, "window_blocks_freed": 0,
}  # fmt: skip


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry("demo", ())


def shown(telemetry: Telemetry) -> dict[str, float]:
    """Read the page: `name{label="value"}` -> value, without the prefix, bounds of histograms left out."""
    result: dict[str, float] = {}
    for family in text_string_to_metric_families(telemetry.metrics.render().decode()):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                result[sample.name.removeprefix("chairlift_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return result


def news(telemetry: Telemetry, before: dict[str, float]) -> dict[str, float]:
    """Return what moved, and to where."""
    return {name: value for name, value in shown(telemetry).items() if value != before.get(name, 0.0)}


def seen(**more: Any) -> AccessRecord:
    data: dict[str, Any] = {
        "request_id": "r", "method": "POST", "route": "/v1/completions", "status": 200, "seconds": 0.5, "code": "",
        "tenant": "",
    }  # fmt: skip
    return AccessRecord(**{**data, **more})


def step(**more: Any) -> StepStats:
    data: dict[str, Any] = {
        "step_id": 1, "num_sequences": 3, "num_tokens": 12, "num_prefill_tokens": 10, "num_outputs": 2,
        "context_tokens": 0, "prefill_pairs": 0, "running": 3, "waiting": 4, "free_blocks": 0, "allocated_kv_tokens": 0,
        "unused_kv_tokens": 0, "preemptions": 0, "in_flight": 1, "schedule_ms": 1.0, "launch_ms": 2.0,
        "collect_ms": 4.0,
        "commit_ms": 8.0,
    }  # fmt: skip
    return StepStats(**{**data, **more})


def pulse(telemetry: Telemetry, load: LoadReport | None = None, cache: CacheState | None = CACHE, restarts: int = 0,
          state: ReplicaState = ReplicaState.READY, line: AdmissionController | None = None) -> None:  # fmt: skip
    telemetry.update_gauges(
        state,
        load or LoadReport(state=state),
        cache,
        line or AdmissionController(AdmissionLimits()),
        restarts,
        block_bytes=10.0,
    )


# -- requests ----------------------------------------------------------------------------------------------------------


def test_answers_are_counted_by_route_method_and_status(telemetry: Telemetry) -> None:
    for response in (seen(), seen(), seen(status=400), seen(route="/v1/models/{id}", method="GET")):
        telemetry.record_response(response)
    assert news(telemetry, {}) == {
        "http_requests_total{method=POST,route=/v1/completions,status=200}": 2,
        "http_requests_total{method=POST,route=/v1/completions,status=400}": 1,
        "http_requests_total{method=GET,route=/v1/models/{id},status=200}": 1,
    }


def test_a_client_cannot_make_labels(telemetry: Telemetry) -> None:
    for number in range(1000):
        telemetry.record_response(seen(method=f"VERB{number}", route="", status=405))
    telemetry.record_response(seen(method="get", route="", status=405))
    telemetry.record_response(seen(method="", route="", status=0))
    assert news(telemetry, {}) == {
        "http_requests_total{method=other,route=other,status=405}": 1001,
        "http_requests_total{method=other,route=other,status=0}": 1,
    }


def test_an_error_before_any_work_is_a_refusal(telemetry: Telemetry) -> None:
    refused = {"status": 401, "code": "invalid_api_key"}
    for response in (seen(**refused), seen(**refused, begun=True), seen(status=499, code="client_gone")):
        telemetry.record_response(response)
    result = {name: value for name, value in news(telemetry, {}).items() if name.startswith("refusals")}
    assert result == {"refusals_total{code=invalid_api_key}": 1}


def test_refusals_and_aborts_are_counted_by_why(telemetry: Telemetry) -> None:
    telemetry.record_rejection("overloaded")
    telemetry.record_rejection("overloaded")
    telemetry.record_abort("client")
    assert news(telemetry, {}) == {"refusals_total{code=overloaded}": 2, "aborts_total{reason=client}": 1}


def test_tokens_and_the_time_between_them(telemetry: Telemetry) -> None:
    telemetry.record_first_token(0.25)
    telemetry.record_tokens(3, None)
    telemetry.record_tokens(2, 0.5)
    assert news(telemetry, {}) == {
        "first_token_seconds_count": 1, "first_token_seconds_sum": 0.25, "output_tokens_total": 5,
        "inter_token_seconds_count": 1, "inter_token_seconds_sum": 0.5,
    }  # fmt: skip


def test_the_end_of_a_generation(telemetry: Telemetry) -> None:
    events = (TimelineEvent("queued", 0.0), TimelineEvent("scheduled", 0.125), TimelineEvent("scheduled", 0.5),
              TimelineEvent("finished", 2.0, "stop"))  # fmt: skip
    telemetry.record_finished("r", "stop", 2.0, Usage(10, 5, 4), Timeline(events, (("blocks", 0.125),)))
    assert news(telemetry, {}) == {
        "requests_total{outcome=stop}": 1, "request_seconds_count": 1, "request_seconds_sum": 2,
        "prompt_tokens_total": 10, "cached_tokens_total": 4, "queue_seconds_count": 1, "queue_seconds_sum": 0.125,
        "request_prompt_tokens_count": 1, "request_prompt_tokens_sum": 10, "request_output_tokens_count": 1,
        "request_output_tokens_sum": 5,
    }  # fmt: skip
    assert telemetry.record("r") == {
        "request_id": "r", "outcome": "stop", "seconds": 2.0, "events": [[*event] for event in events],
        "wait_seconds": {"blocks": 0.125}, "usage": [10, 5, 4],
    }  # fmt: skip
    assert telemetry.record("s") is None


def test_a_generation_of_which_nothing_is_known_counts_no_tokens(telemetry: Telemetry) -> None:
    telemetry.record_finished("r", "engine_dead", 1.0, None, None)
    telemetry.record_finished("s", "abort", 1.0, None, Timeline((TimelineEvent("queued", 0.0),)))
    moved = news(telemetry, {})
    assert moved.pop("requests_total{outcome=engine_dead}") == moved.pop("requests_total{outcome=abort}") == 1
    assert moved == {"request_seconds_count": 2, "request_seconds_sum": 2}
    record = telemetry.record("r")
    assert record is not None and (record["usage"], record["events"], record["wait_seconds"]) == (None, [], {})


def test_the_last_requests_are_remembered_and_no_more(telemetry: Telemetry) -> None:
    for number in range(MAX_RECORDS):
        telemetry.record_finished(str(number), "stop", 1.0, None, None)
    telemetry.record_finished("0", "length", 1.0, None, None)
    assert telemetry.record("1") is not None, "an id that comes again takes no second place"
    telemetry.record_finished("last", "stop", 1.0, None, None)
    assert telemetry.record("1") is None
    again = telemetry.record("0")
    assert again is not None and again["outcome"] == "length", "and is among the newest"
    kept = [number for number in range(MAX_RECORDS) if telemetry.record(str(number))]
    assert len(kept) == MAX_RECORDS - 1


# -- the engine --------------------------------------------------------------------------------------------------------


def test_a_step_is_shown_by_phase_in_seconds(telemetry: Telemetry) -> None:
    telemetry.record_step(step(), budget=24)
    moved = news(telemetry, {})
    phases = {
        phase: moved.pop(f"step_seconds_sum{{phase={phase}}}") for phase in ("schedule", "launch", "collect", "commit")
    }
    assert phases == {"schedule": 0.001, "launch": 0.002, "collect": 0.004, "commit": 0.008}
    assert {moved.pop(f"step_seconds_count{{phase={phase}}}") for phase in phases} == {1}
    assert moved == {
        "steps_total": 1, "prefill_tokens_total": 10, "decode_tokens_total": 2, "step_sequences_count": 1,
        "step_sequences_sum": 3, "step_tokens_count": 1, "step_tokens_sum": 12, "budget_use_count": 1,
        "budget_use_sum": 0.5, "running_requests": 3, "queued_requests": 4, "decode_prefill_ratio": 0.2,
    }  # fmt: skip


def test_the_share_of_a_budget_is_one_at_most(telemetry: Telemetry) -> None:
    telemetry.record_step(step(num_tokens=100), budget=10)
    assert shown(telemetry)["budget_use_sum"] == 1


def test_the_ratio_is_of_the_last_step_that_had_both(telemetry: Telemetry) -> None:
    telemetry.record_step(step(num_tokens=15, num_prefill_tokens=10), budget=100)
    for one_kind in (step(num_tokens=10, num_prefill_tokens=10), step(num_tokens=3, num_prefill_tokens=0)):
        telemetry.record_step(one_kind, budget=100)
    assert shown(telemetry)["decode_prefill_ratio"] == 0.5


def test_preemptions_are_counted_on_when_another_engine_begins_at_zero(telemetry: Telemetry) -> None:
    for total in (0, 2, 2, 5, 1, 1, 4):
        telemetry.record_step(step(preemptions=total), budget=100)
    assert shown(telemetry)["preemptions_total"] == 5 + 4


def test_a_pulse_shows_how_things_stand(telemetry: Telemetry) -> None:
    line = AdmissionController(AdmissionLimits())
    permits = [line.admit(tokens) for tokens in (7, 5)]
    permits[0].mark_running()
    load = LoadReport(
        state=ReplicaState.READY, running_requests=2, waiting_requests=1, prompt_tokens=40, cached_tokens=10
    )
    pulse(telemetry, load, line=line)
    assert news(telemetry, {}) == {
        "ready": 1, "open_requests": 2, "waiting_requests": 1, "waiting_tokens": 5, "running_requests": 2,
        "queued_requests": 1, "cache_hit_rate": 0.25, "kv_blocks{state=used}": 30, "kv_blocks{state=cached}": 20,
        "kv_blocks{state=free}": 50, "kv_use": 0.3, "kv_bytes": 1000, "kv_free_bytes": 700,
    }  # fmt: skip
    for permit in permits:
        permit.end()
    pulse(telemetry, LoadReport(state=ReplicaState.READY), line=line)
    result = shown(telemetry)
    assert result["open_requests"] == result["waiting_requests"] == result["waiting_tokens"] == 0


@pytest.mark.parametrize("state", list(ReplicaState))
def test_only_who_serves_is_ready(telemetry: Telemetry, state: ReplicaState) -> None:
    pulse(telemetry, state=state)
    assert shown(telemetry)["ready"] == (state is ReplicaState.READY)


def test_without_an_engine_its_cache_is_shown_as_it_was(telemetry: Telemetry) -> None:
    pulse(telemetry)
    before = shown(telemetry)
    pulse(telemetry, cache=None)
    assert shown(telemetry) == before


def test_a_cache_without_blocks_is_not_in_use(telemetry: Telemetry) -> None:
    pulse(telemetry, cache={**CACHE, "total_blocks": 0, "free_blocks": 0, "cached_blocks": 0, "allocated_blocks": 0})
    assert shown(telemetry)["kv_use"] == 0


def test_restarts_are_counted_once_each(telemetry: Telemetry) -> None:
    for restarts in (0, 1, 1, 3):
        pulse(telemetry, restarts=restarts)
    assert shown(telemetry)["engine_restarts_total"] == 3


# -- processes ---------------------------------------------------------------------------------------------------------


def test_what_this_process_uses_is_what_the_system_says(telemetry: Telemetry) -> None:
    telemetry.processes({"api": os.getpid()})
    result = shown(telemetry)
    seconds = sum(os.times()[:2])
    assert 0 < result["process_cpu_seconds_total{process=api}"] <= seconds + 0.1
    assert 2**22 < result["process_memory_bytes{process=api}"] < 2**36
    assert 3 <= result["process_open_files{process=api}"] < 10_000


def test_processor_time_only_grows_also_when_another_process_has_the_name(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {1: (5.0, 100, 3), 2: (1.0, 200, None), 3: None}
    monkeypatch.setattr(module, "_process", data.__getitem__)
    telemetry.processes({"engine": 1})
    telemetry.processes({"engine": 2})
    data[2] = (1.5, 300, None)
    telemetry.processes({"engine": 2})
    telemetry.processes({"engine": 3})
    assert news(telemetry, {}) == {
        "process_cpu_seconds_total{process=engine}": 6.5, "process_memory_bytes{process=engine}": 300,
        "process_open_files{process=engine}": 3,
    }  # fmt: skip


def test_a_process_that_is_gone_or_no_linux_tells_nothing(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry.processes({"engine": 2**30})
    monkeypatch.setattr(module.sys, "platform", "darwin")
    telemetry.processes({"api": os.getpid()})
    assert news(telemetry, {}) == {}


# -- names of others ---------------------------------------------------------------------------------------------------


def test_names_of_others_are_on_the_page_only_where_they_are_asked_for(telemetry: Telemetry) -> None:
    assert "vllm" not in telemetry.metrics.render().decode()
    both = Telemetry("demo", tuple(ALIAS_SETS))
    both.record_first_token(0.25)
    both.record_tokens(5, None)
    result = shown(both)
    assert result["vllm:generation_tokens_total{model_name=demo}"] == 5
    assert result["vllm:time_to_first_token_seconds_sum{model_name=demo}"] == 0.25
    assert result["ttft_milliseconds_sum"] == 250
    assert result["output_tokens_total"] == 5, "ours are there, too"


def test_two_replicas_in_one_process_share_nothing() -> None:
    one, other = Telemetry("a", ("vllm",)), Telemetry("b", ("vllm",))
    one.record_tokens(5, None)
    assert news(other, shown(Telemetry("b", ("vllm",)))) == {}
