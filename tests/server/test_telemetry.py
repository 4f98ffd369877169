"""Telemetry: /metrics shows the exact values of recorded events, with few label values."""

import math
import os
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.core.engine_output import Usage
from chairlift.core.host.gpu_reader import GpuUsage
from chairlift.core.host.resource_monitor import ResourceUsage
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request_timeline import Timeline, TimelineEvent
from chairlift.engine.scheduler_and_cache_state import CacheState
from chairlift.engine.step_stats import StepStats
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


def read_metrics(telemetry: Telemetry) -> dict[str, float]:
    """Return `name{label=value}` -> value of the rendered metrics, without the prefix and without histogram buckets."""
    result: dict[str, float] = {}
    for metric in text_string_to_metric_families(telemetry.metrics.render().decode()):
        for sample in metric.samples:
            if not sample.name.endswith("_bucket"):
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                result[sample.name.removeprefix("chairlift_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return result


def changed_metrics(telemetry: Telemetry, before: dict[str, float]) -> dict[str, float]:
    """Return the metrics whose values differ from `before`, with their new values."""
    return {name: value for name, value in read_metrics(telemetry).items() if value != before.get(name, 0.0)}


def access_record(**more: Any) -> AccessRecord:
    data: dict[str, Any] = {
        "request_id": "r", "method": "POST", "route": "/v1/completions", "status": 200, "seconds": 0.5, "code": "",
        "tenant": "",
    }  # fmt: skip
    return AccessRecord(**{**data, **more})


def step_stats(**more: Any) -> StepStats:
    data: dict[str, Any] = {
        "step_id": 1, "num_sequences": 3, "num_tokens": 12, "num_prefill_tokens": 10, "num_outputs": 2,
        "context_tokens": 0, "prefill_pairs": 0, "running": 3, "waiting": 4, "free_blocks": 0, "allocated_kv_tokens": 0,
        "unused_kv_tokens": 0, "preemptions": 0, "in_flight": 1, "schedule_ms": 1.0, "launch_ms": 2.0,
        "collect_ms": 4.0, "commit_ms": 8.0,
    }  # fmt: skip
    return StepStats(**{**data, **more})


def update_gauges(
    telemetry: Telemetry, load: LoadReport | None = None, cache: CacheState | None = CACHE, restarts: int = 0,
    state: ReplicaState = ReplicaState.READY, admission: AdmissionController | None = None,
) -> None:  # fmt: skip
    telemetry.update_gauges(
        state,
        load or LoadReport(state=state),
        cache,
        admission or AdmissionController(AdmissionLimits()),
        restarts,
        block_bytes=10.0,
    )


# -- requests ----------------------------------------------------------------------------------------------------------


def test_answers_are_counted_by_route_method_and_status(telemetry: Telemetry) -> None:
    for response in (
        access_record(),
        access_record(),
        access_record(status=400),
        access_record(route="/v1/models/{id}", method="GET"),
    ):
        telemetry.record_response(response)
    assert changed_metrics(telemetry, {}) == {
        "http_requests_total{method=POST,route=/v1/completions,status=200}": 2,
        "http_requests_total{method=POST,route=/v1/completions,status=400}": 1,
        "http_requests_total{method=GET,route=/v1/models/{id},status=200}": 1,
        "tenant_requests_total{status=200,tenant=none}": 2, "tenant_requests_total{status=400,tenant=none}": 1,
        "model_requests_total{model=none,result=success}": 2,
        "model_requests_total{model=none,result=client_error}": 1,
    }  # fmt: skip


def test_a_client_cannot_make_labels(telemetry: Telemetry) -> None:
    for number in range(1000):
        telemetry.record_response(access_record(method=f"VERB{number}", route="", status=405))
    telemetry.record_response(access_record(method="get", route="", status=405))
    telemetry.record_response(access_record(method="", route="", status=0))
    assert changed_metrics(telemetry, {}) == {
        "http_requests_total{method=other,route=other,status=405}": 1001,
        "http_requests_total{method=other,route=other,status=0}": 1,
    }


def test_an_error_before_any_work_is_a_refusal(telemetry: Telemetry) -> None:
    rejected = {"status": 401, "code": "invalid_api_key"}
    for response in (
        access_record(**rejected),
        access_record(**rejected, was_submitted=True),
        access_record(status=499, code="client_gone"),
    ):
        telemetry.record_response(response)
    result = {
        name: value for name, value in changed_metrics(telemetry, {}).items() if name.startswith("requests_rejected")
    }
    assert result == {"requests_rejected_total{code=invalid_api_key}": 1}


def test_refusals_and_aborts_are_counted_by_why(telemetry: Telemetry) -> None:
    telemetry.record_rejection("overloaded")
    telemetry.record_rejection("overloaded")
    telemetry.record_abort("client")
    assert changed_metrics(telemetry, {}) == {
        "requests_rejected_total{code=overloaded}": 2,
        "requests_aborted_total{reason=client}": 1,
    }


def test_tokens_and_the_time_between_them(telemetry: Telemetry) -> None:
    telemetry.record_first_token(0.25)
    telemetry.record_tokens(3, None)
    telemetry.record_tokens(2, 0.5)
    assert changed_metrics(telemetry, {}) == {
        "time_to_first_token_seconds_count": 1, "time_to_first_token_seconds_sum": 0.25, "output_tokens_total": 5,
        "inter_token_latency_seconds_count": 1, "inter_token_latency_seconds_sum": 0.5,
    }  # fmt: skip


def test_the_end_of_a_generation(telemetry: Telemetry) -> None:
    events = (TimelineEvent("queued", 0.0), TimelineEvent("scheduled", 0.125), TimelineEvent("scheduled", 0.5),
              TimelineEvent("finished", 2.0, "stop"))  # fmt: skip
    telemetry.record_finished("r", "stop", 2.0, Usage(10, 5, 4), Timeline(events, (("blocks", 0.125),)), num_used=12)
    assert changed_metrics(telemetry, {}) == {
        "requests_finished_total{outcome=stop}": 1, "e2e_request_latency_seconds_count": 1,
        "e2e_request_latency_seconds_sum": 2, "prompt_tokens_total": 10, "prefix_cached_tokens_total": 4,
        "request_queue_time_seconds_count": 1, "request_queue_time_seconds_sum": 0.125,
        "request_prompt_tokens_count": 1, "request_prompt_tokens_sum": 10, "request_output_tokens_count": 1,
        "request_output_tokens_sum": 5, "model_requests_total{model=demo,result=success}": 1,
        "tenant_tokens_total{tenant=none}": 12,
    }  # fmt: skip
    assert telemetry.record("r") == {
        "request_id": "r", "outcome": "stop", "seconds": 2.0, "events": [[*event] for event in events],
        "wait_seconds": {"blocks": 0.125}, "usage": [10, 5, 4],
    }  # fmt: skip
    assert telemetry.record("s") is None


def test_a_generation_of_which_nothing_is_known_counts_no_tokens(telemetry: Telemetry) -> None:
    telemetry.record_finished("r", "engine_dead", 1.0, None, None)
    telemetry.record_finished("s", "abort", 1.0, None, Timeline((TimelineEvent("queued", 0.0),)))
    changed = changed_metrics(telemetry, {})
    assert (
        changed.pop("requests_finished_total{outcome=engine_dead}")
        == changed.pop("requests_finished_total{outcome=abort}")
        == 1
    )
    assert changed == {
        "e2e_request_latency_seconds_count": 2, "e2e_request_latency_seconds_sum": 2,
        "model_requests_total{model=demo,result=aborted}": 1, "model_requests_total{model=demo,result=server_error}": 1,
    }  # fmt: skip
    record = telemetry.record("r")
    assert record is not None and (record["usage"], record["events"], record["wait_seconds"]) == (None, [], {})


def test_the_last_requests_are_remembered_and_no_more(telemetry: Telemetry) -> None:
    for number in range(MAX_RECORDS):
        telemetry.record_finished(str(number), "stop", 1.0, None, None)
    telemetry.record_finished("0", "length", 1.0, None, None)
    assert telemetry.record("1") is not None, "a repeated id does not count twice"
    telemetry.record_finished("last", "stop", 1.0, None, None)
    assert telemetry.record("1") is None
    repeated = telemetry.record("0")
    assert repeated is not None and repeated["outcome"] == "length", "a repeated id becomes the newest"
    kept = [number for number in range(MAX_RECORDS) if telemetry.record(str(number))]
    assert len(kept) == MAX_RECORDS - 1


# -- the engine --------------------------------------------------------------------------------------------------------


def test_a_step_is_shown_by_phase_in_seconds(telemetry: Telemetry) -> None:
    telemetry.record_step(step_stats(), budget=24)
    changed = changed_metrics(telemetry, {})
    phases = {
        phase: changed.pop(f"step_seconds_sum{{phase={phase}}}")
        for phase in ("schedule", "launch", "collect", "commit")
    }
    assert phases == {"schedule": 0.001, "launch": 0.002, "collect": 0.004, "commit": 0.008}
    assert {changed.pop(f"step_seconds_count{{phase={phase}}}") for phase in phases} == {1}
    assert changed == {
        "steps_total": 1, "prefill_tokens_total": 10, "decode_tokens_total": 2, "step_sequences_count": 1,
        "step_sequences_sum": 3, "step_tokens_count": 1, "step_tokens_sum": 12, "step_token_budget_ratio_count": 1,
        "step_token_budget_ratio_sum": 0.5, "sequences_running": 3, "sequences_waiting": 4, "decode_prefill_ratio": 0.2,
    }  # fmt: skip


def test_the_share_of_a_budget_is_one_at_most(telemetry: Telemetry) -> None:
    telemetry.record_step(step_stats(num_tokens=100), budget=10)
    assert read_metrics(telemetry)["step_token_budget_ratio_sum"] == 1


def test_the_ratio_is_of_the_last_step_that_had_both(telemetry: Telemetry) -> None:
    telemetry.record_step(step_stats(num_tokens=15, num_prefill_tokens=10), budget=100)
    for one_kind in (step_stats(num_tokens=10, num_prefill_tokens=10), step_stats(num_tokens=3, num_prefill_tokens=0)):
        telemetry.record_step(one_kind, budget=100)
    assert read_metrics(telemetry)["decode_prefill_ratio"] == 0.5


def test_preemptions_are_counted_on_when_another_engine_begins_at_zero(telemetry: Telemetry) -> None:
    for total in (0, 2, 2, 5, 1, 1, 4):
        telemetry.record_step(step_stats(preemptions=total), budget=100)
    assert read_metrics(telemetry)["preemptions_total"] == 5 + 4


def test_the_memory_of_the_engines_gpu_is_shown_if_it_has_one(telemetry: Telemetry) -> None:
    telemetry.record_step(step_stats(), budget=100)
    assert not any(name.startswith("engine_gpu") for name in read_metrics(telemetry))
    telemetry.record_step(step_stats(device_tensor_bytes=70, device_reserved_bytes=80), budget=100)
    values = read_metrics(telemetry)
    assert values["engine_gpu_memory_bytes{state=tensors}"] == 70
    assert values["engine_gpu_memory_bytes{state=reserved}"] == 80


def test_steps_without_memory_are_counted_on_when_another_engine_begins_at_zero(telemetry: Telemetry) -> None:
    for total in (0, 2, 5, 0, 1):
        telemetry.record_step(step_stats(out_of_memory_steps=total), budget=100)
    assert read_metrics(telemetry)["out_of_memory_steps_total"] == 5 + 1


def test_saved_states_are_counted_on_when_another_engine_begins_at_zero(telemetry: Telemetry) -> None:
    for hits, saves, evictions in ((0, 1, 0), (2, 5, 1), (2, 5, 1), (0, 1, 0), (1, 2, 0)):
        telemetry.record_step(
            step_stats(
                state_checkpoint_hits=hits, state_checkpoint_saves=saves, state_checkpoint_evictions=evictions
            ),
            budget=100,
        )  # fmt: skip
    values = read_metrics(telemetry)
    assert [values[f"state_checkpoint_{name}_total"] for name in ("hits", "saves", "evictions")] == [3, 7, 1]


def test_drafts_are_counted_by_position_and_on_when_another_engine_begins_at_zero(telemetry: Telemetry) -> None:
    for drafts, tokens, confirmed in ((0, 0, ()), (2, 9, (2, 1)), (3, 13, (3, 2, 1)), (1, 4, (1,)), (2, 8, (1,))):
        stats = step_stats(drafts=drafts, draft_tokens=tokens, confirmed_by_position=confirmed)
        telemetry.record_step(stats, budget=100)
    values = read_metrics(telemetry)
    names = ("drafts", "draft_tokens", "accepted_tokens")
    assert [values[f"spec_decode_num_{name}_total"] for name in names] == [5, 21, 7]
    by_position = [values[f"spec_decode_num_accepted_tokens_per_pos_total{{position={place}}}"] for place in range(3)]
    assert by_position == [4, 2, 1]


def test_saved_states_are_gauges_of_a_model_whose_layers_keep_one(telemetry: Telemetry) -> None:
    update_gauges(telemetry)
    assert not any(name.startswith("state_checkpoints{") for name in read_metrics(telemetry))
    update_gauges(telemetry, cache={**CACHE, "state_checkpoints": {
        "total": 9, "free": 4, "cached": 3, "held": 2, "hits": 0, "saves": 0, "skipped_saves": 0, "evictions": 0,
    }})  # fmt: skip
    values = read_metrics(telemetry)
    assert [values[f"state_checkpoints{{state={name}}}"] for name in ("used", "cached", "free")] == [2, 3, 4]


def test_the_limits_of_the_scheduler_are_gauges_whose_changes_are_counted(telemetry: Telemetry) -> None:
    for running in (32, 32, 26, 40):
        stats = step_stats(max_running_requests=running, max_batch_tokens=2048, usable_blocks=100)
        telemetry.record_step(stats, budget=100)
    metrics = read_metrics(telemetry)
    assert [metrics[f"engine_limit{{limit={name}}}"] for name in ("running_requests", "batch_tokens", "kv_blocks")] == [
        40, 2048, 100,
    ]  # fmt: skip
    assert metrics["engine_limit_changes_total{limit=running_requests}"] == 2
    assert metrics["engine_limit_changes_total{limit=kv_blocks}"] == 0


def test_a_pulse_shows_how_things_stand(telemetry: Telemetry) -> None:
    admission = AdmissionController(AdmissionLimits())
    permits = [admission.admit(tokens) for tokens in (7, 5)]
    permits[0].mark_running()
    load = LoadReport(
        state=ReplicaState.READY, running_requests=2, waiting_requests=1, prompt_tokens=40, cached_tokens=10
    )
    update_gauges(telemetry, load, admission=admission)
    assert changed_metrics(telemetry, {}) == {
        "ready": 1, "requests_open": 2, "admission_waiting_requests": 1, "admission_waiting_tokens": 5,
        "sequences_running": 2, "sequences_waiting": 1, "prefix_cache_hit_ratio": 0.25,
        "kv_cache_blocks{state=used}": 30, "kv_cache_blocks{state=cached}": 20, "kv_cache_blocks{state=free}": 50,
        "kv_cache_usage_ratio": 0.3, "kv_cache_bytes": 1000, "kv_cache_free_bytes": 700,
    }  # fmt: skip
    for permit in permits:
        permit.end()
    update_gauges(telemetry, LoadReport(state=ReplicaState.READY), admission=admission)
    result = read_metrics(telemetry)
    assert result["requests_open"] == result["admission_waiting_requests"] == result["admission_waiting_tokens"] == 0


@pytest.mark.parametrize("state", list(ReplicaState))
def test_only_who_serves_is_ready(telemetry: Telemetry, state: ReplicaState) -> None:
    update_gauges(telemetry, state=state)
    assert read_metrics(telemetry)["ready"] == (state is ReplicaState.READY)


def test_without_an_engine_its_cache_is_shown_as_it_was(telemetry: Telemetry) -> None:
    update_gauges(telemetry)
    before = read_metrics(telemetry)
    update_gauges(telemetry, cache=None)
    assert read_metrics(telemetry) == before


def test_a_cache_without_blocks_is_not_in_use(telemetry: Telemetry) -> None:
    update_gauges(
        telemetry, cache={**CACHE, "total_blocks": 0, "free_blocks": 0, "cached_blocks": 0, "allocated_blocks": 0}
    )
    assert read_metrics(telemetry)["kv_cache_usage_ratio"] == 0


def test_restarts_are_counted_once_each(telemetry: Telemetry) -> None:
    for restarts in (0, 1, 1, 3):
        update_gauges(telemetry, restarts=restarts)
    assert read_metrics(telemetry)["engine_restarts_total"] == 3


# -- processes ---------------------------------------------------------------------------------------------------------


def test_what_this_process_uses_is_what_the_system_says(telemetry: Telemetry) -> None:
    telemetry.record_processes({"api": os.getpid()})
    result = read_metrics(telemetry)
    seconds = sum(os.times()[:2])
    assert 0 < result["process_cpu_seconds_total{process=api}"] <= seconds + 0.1
    assert 2**22 < result["process_memory_bytes{process=api}"] < 2**36
    assert 3 <= result["process_open_files{process=api}"] < 10_000


def test_processor_time_only_grows_also_when_another_process_has_the_name(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {1: (5.0, 100, 3), 2: (1.0, 200, None), 3: None}
    monkeypatch.setattr(module, "_process", data.__getitem__)
    telemetry.record_processes({"engine": 1})
    telemetry.record_processes({"engine": 2})
    data[2] = (1.5, 300, None)
    telemetry.record_processes({"engine": 2})
    telemetry.record_processes({"engine": 3})
    assert changed_metrics(telemetry, {}) == {
        "process_cpu_seconds_total{process=engine}": 6.5, "process_memory_bytes{process=engine}": 300,
        "process_open_files{process=engine}": 3,
    }  # fmt: skip


def test_a_process_that_is_gone_or_no_linux_tells_nothing(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry.record_processes({"engine": 2**30})
    monkeypatch.setattr(module.sys, "platform", "darwin")
    telemetry.record_processes({"api": os.getpid()})
    assert changed_metrics(telemetry, {}) == {}


def test_resources_are_exported_and_what_is_unknown_is_no_number(telemetry: Telemetry) -> None:
    gpus = (
        GpuUsage(gpu="0", utilization_ratio=0.5, memory_used_bytes=10, memory_total_bytes=40),
        GpuUsage(gpu="MIG-1", memory_used_bytes=1, memory_total_bytes=2),
    )
    telemetry.record_resources(ResourceUsage(cpu_ratio=0.25, memory_ratio=0.5, host_memory_ratio=0.75, gpus=gpus))
    assert changed_metrics(telemetry, {}) == {
        "cpu_usage_ratio": 0.25, "memory_usage_ratio": 0.5, "host_memory_usage_ratio": 0.75,
        "gpu_utilization_ratio{gpu=0}": 0.5, "gpu_memory_used_bytes{gpu=0}": 10, "gpu_memory_total_bytes{gpu=0}": 40,
        "gpu_memory_used_bytes{gpu=MIG-1}": 1, "gpu_memory_total_bytes{gpu=MIG-1}": 2,
    }  # fmt: skip
    telemetry.record_resources(ResourceUsage(gpus=(GpuUsage(gpu="0", error="GPU is lost"),)))
    values = changed_metrics(telemetry, {})
    assert set(values) == {"cpu_usage_ratio", "memory_usage_ratio", "host_memory_usage_ratio"}
    assert all(map(math.isnan, values.values()))


# -- aliases -----------------------------------------------------------------------------------------------------------


def test_names_of_others_are_on_the_page_only_where_they_are_asked_for(telemetry: Telemetry) -> None:
    assert "vllm" not in telemetry.metrics.render().decode()
    both = Telemetry("demo", tuple(ALIAS_SETS))
    both.record_first_token(0.25)
    both.record_tokens(5, None)
    result = read_metrics(both)
    assert result["vllm:generation_tokens_total{model_name=demo}"] == 5
    assert result["vllm:time_to_first_token_seconds_sum{model_name=demo}"] == 0.25
    assert result["ttft_milliseconds_sum"] == 250
    assert result["output_tokens_total"] == 5, "Chairlift's own names are exported, too"


def test_two_replicas_in_one_process_share_nothing() -> None:
    one, other = Telemetry("a", ("vllm",)), Telemetry("b", ("vllm",))
    one.record_tokens(5, None)
    assert changed_metrics(other, read_metrics(Telemetry("b", ("vllm",)))) == {}
