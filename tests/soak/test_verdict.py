"""judge: every check passes for a test without problems, and each problem fails its check."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from soak.fault_injection import Fault, InjectedFault
from soak.raw_client import Outcome, RequestResult
from soak.request_mix import COMPLETE, SoakRequest
from soak.server_samples import IdleSample, ProcessSample, ServerSample
from soak.soak_result import SoakResult
from soak.verdict import MAX_GROWTH, check_memory, engine_settled_at, is_during_fault, judge, window_growth
from support_shares import for_each

SECONDS = 1800.0
KILLED = InjectedFault(Fault.KILL, 200.0, 208.0)
MIB = 2**20


def process(pid: int = 1, memory: float = 100 * MIB, **more: Any) -> ProcessSample:
    fields: dict[str, Any] = {"descriptors": 20, "threads": 5, "shared_files": 0, **more}
    return ProcessSample(pid=pid, rss=int(memory), pss=int(memory * 0.8), uss=int(memory * 0.7), **fields)


def sample(
    at: float, *, api: ProcessSample | None = None, engine: ProcessSample | None = None, **more: Any
) -> ServerSample:
    fields: dict[str, Any] = {
        "temp_files": 2, "children": 1, "metrics": {"engine_restarts_total": 1.0}, "used_blocks": 0.0,
    }  # fmt: skip
    return ServerSample(at=at, api=api or process(), engine=engine or process(2), **{**fields, **more})


def idle_sample(at: float, **more: Any) -> IdleSample:
    """Return a sample of an idle server; `more` has fields of the idle sample and of its server sample."""
    fields: dict[str, Any] = {
        "is_idle": True, "num_requests": 0, "used_blocks": 0, "integrity_errors": (), "reference_matches": True,
    }  # fmt: skip
    server_fields = {key: more.pop(key) for key in ("api", "engine", "temp_files", "children") if key in more}
    return IdleSample(sample=sample(at, **server_fields), **{**fields, **more})


IDLE_SAMPLES = [idle_sample(SECONDS * (number + 1) / 10) for number in range(10)]


def soak_result(sample_at: Callable[[float], ServerSample] = sample, **more: Any) -> SoakResult:
    fields: dict[str, Any] = {
        "seconds": SECONDS, "settle_seconds": 300.0, "samples": [sample_at(at * 2.0) for at in range(int(SECONDS / 2))],
        "idle_samples": IDLE_SAMPLES, "faults": [KILLED], "unexpected": [], "num_requests": 1000, "num_dropped": 0,
        "num_rejected": 50, "exit_code": 0, "num_temp_files": 0,
    }  # fmt: skip
    return SoakResult(**{**fields, **more})


def failed_checks(sample_at: Callable[[float], ServerSample] = sample, **more: Any) -> list[str]:
    """Return the names of the checks that fail for a result with these samples and fields."""
    return [each.name for each in judge(soak_result(sample_at, **more)) if not each.passed]


def test_a_test_without_problems_passes() -> None:
    assert failed_checks() == []


@pytest.mark.parametrize("num_rejected", [0, 201, 1000])
def test_no_rejection_and_many_rejections_fail(num_rejected: int) -> None:
    (name,) = failed_checks(num_rejected=num_rejected)
    assert "overload" in name


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "name"), [("api", "API process"), ("engine", "engine process")])
def test_a_process_that_grows_all_the_time_is_found(field: str, name: str) -> None:
    def growing_by(share: float) -> Callable[[float], ServerSample]:
        return lambda at: sample(at, **{field: process(memory=100 * MIB * (1 + share * at / SECONDS))})

    (failed,) = failed_checks(growing_by(0.15))
    assert name in failed
    assert failed_checks(growing_by(0.03)) == [] and failed_checks(growing_by(-0.3)) == []


def test_a_process_may_grow_in_its_first_minutes() -> None:
    def warming_up(at: float) -> ServerSample:
        return sample(at, api=process(memory=100 * MIB + min(at, 290.0) * MIB))

    assert failed_checks(warming_up) == []
    assert any("API" in name for name in failed_checks(warming_up, settle_seconds=30.0)), "it grows after 30 s"


def test_one_high_moment_is_no_growth_and_a_step_is() -> None:
    def one_peak(at: float) -> ServerSample:
        return sample(at, api=process(memory=(300 if at == 1700.0 else 100) * MIB))

    def step(at: float) -> ServerSample:
        return sample(at, api=process(memory=(100 if at < 900 else 106) * MIB))

    assert failed_checks(one_peak) == []
    assert len(failed_checks(step)) == 1


def test_growth_of_rss_fails_and_growth_of_pss_does_not() -> None:
    def growing_pss(at: float) -> ServerSample:
        before = process()
        return sample(at, api=replace(before, pss=int(before.pss * (1 + 0.2 * at / SECONDS))))

    def growing_rss(at: float) -> ServerSample:
        before = process()
        return sample(at, api=replace(before, rss=int(before.rss * (1 + 0.2 * at / SECONDS))))

    assert failed_checks(growing_pss) == [] and len(failed_checks(growing_rss)) == 1


def test_an_engine_is_judged_from_its_last_start_on() -> None:
    """The killed engine was four times as large; the next one grows only while it warms up."""

    def restarted(at: float) -> ServerSample:
        engine = process(2, 400 * MIB) if at < 208 else process(3, (50 + min(50.0, (at - 208) / 6)) * MIB)
        return sample(at, engine=engine)

    assert engine_settled_at(soak_result(restarted)) == 508.0 and failed_checks(restarted) == []

    def growing_later(at: float) -> ServerSample:
        return sample(at, engine=process(3, (100 + max(0.0, at - 508) / 60) * MIB))

    assert any("engine" in name for name in failed_checks(growing_later))


def test_too_few_samples_fail() -> None:
    assert any("memory" in name for name in failed_checks(samples=[sample(0.0)]))
    without_engine = soak_result(lambda at: replace(sample(at), engine=None))
    finding = check_memory(without_engine, "engine", lambda each: each.engine, 300.0)
    assert not finding.passed and "too few samples" in finding.details
    assert failed_checks(faults=[InjectedFault(Fault.KILL, SECONDS - 100, SECONDS - 90)])


def test_growth_is_that_of_medians() -> None:
    growth = window_growth(soak_result(), lambda each: 0.0, 300.0)
    assert growth is not None and growth.share == 0.0
    growth = window_growth(soak_result(), lambda each: 100 + each.at / 18, 300.0)
    assert growth is not None and growth.share > MAX_GROWTH
    assert (growth.before, growth.after) == (pytest.approx(125, abs=0.2), pytest.approx(191.7, abs=0.2))


# -- idle samples ------------------------------------------------------------------------------------------------------


@for_each(("last", "name"), [
    ({"api": process(descriptors=23)}, "descriptors of the API"),
    ({"engine": process(descriptors=23)}, "descriptors of the engine"),
    ({"api": process(threads=8)}, "threads of the API"), ({"engine": process(threads=8)}, "threads of the engine"),
    ({"engine": process(shared_files=1)}, "shared memory"), ({"temp_files": 3}, "temporary files"),
    ({"children": 2}, "child processes"),
])  # fmt: skip
def test_what_is_left_over_in_the_last_idle_sample_is_found(last: dict[str, Any], name: str) -> None:
    (failed,) = failed_checks(idle_samples=[*IDLE_SAMPLES[:-1], idle_sample(SECONDS, **last)])
    assert failed.startswith(name)


def test_two_more_descriptors_are_allowed() -> None:
    last = idle_sample(SECONDS, api=process(descriptors=22))
    assert failed_checks(idle_samples=[*IDLE_SAMPLES[:-1], last]) == []


@pytest.mark.parametrize("last", [
    {"is_idle": False, "num_requests": 1}, {"is_idle": False, "used_blocks": 3},
    {"integrity_errors": ("a block too many",)},
])  # fmt: skip
def test_a_request_a_block_or_an_integrity_error_when_idle_is_found(last: dict[str, Any]) -> None:
    (failed,) = failed_checks(idle_samples=[*IDLE_SAMPLES, idle_sample(SECONDS, **last)])
    assert failed.startswith("when idle")


def test_another_response_to_the_reference_request_is_found() -> None:
    assert len(failed_checks(idle_samples=[*IDLE_SAMPLES, idle_sample(SECONDS, reference_matches=False)])) == 1


def test_without_idle_samples_their_three_checks_fail() -> None:
    assert len(failed_checks(idle_samples=[])) == 3


# -- requests ----------------------------------------------------------------------------------------------------------


CHAT = SoakRequest("chat", b"")
TIMED = SoakRequest("short timeout", b"", statuses=frozenset({200, 408}))
BAD = SoakRequest("bad: 1", b"", statuses=frozenset({400}))
FINAL_OUTPUT, ALLOWED = "one final output", "one that its request allows"
"""Parts of the names of two checks."""


def ended(outcome: Outcome, status: int, code: str = "", started_at: float = 1000.0) -> RequestResult:
    return RequestResult(outcome, status, code, b"", started_at, started_at + 1)


@for_each(("request_", "result", "name"), [
    (CHAT, ended(Outcome.CONNECTION_LOST, 200), FINAL_OUTPUT), (CHAT, ended(Outcome.TIMED_OUT, 0), FINAL_OUTPUT),
    (CHAT, ended(Outcome.NO_CONNECTION, 0), FINAL_OUTPUT),
    (CHAT, ended(Outcome.CONNECTION_LOST, 200, started_at=205.0), FINAL_OUTPUT),
    (CHAT, ended(Outcome.RESPONSE, 500, "internal_error"), "5xx"),
    (CHAT, ended(Outcome.RESPONSE, 503, "starting"), "5xx"),
    (CHAT, ended(Outcome.ERROR_EVENT, 200, "engine_dead"), "5xx"), (CHAT, ended(Outcome.RESPONSE, 400, "x"), ALLOWED),
    (CHAT, ended(Outcome.ERROR_EVENT, 200, "detokenize_failed"), ALLOWED),
    (CHAT, ended(Outcome.ERROR_EVENT, 200, "timeout"), ALLOWED), (BAD, ended(Outcome.RESPONSE, 200), ALLOWED),
])  # fmt: skip
def test_a_result_that_is_not_allowed_is_found(request_: SoakRequest, result: RequestResult, name: str) -> None:
    (failed,) = failed_checks(unexpected=[(request_, result)])
    assert name in failed


@for_each(("request_", "result"), [
    (CHAT, ended(Outcome.RESPONSE, 429, "overloaded")),
    (CHAT, ended(Outcome.RESPONSE, 503, "starting", started_at=207.0)),
    (CHAT, ended(Outcome.ERROR_EVENT, 200, "engine_dead", started_at=199.5)),
    (TIMED, ended(Outcome.RESPONSE, 408, "timeout")), (TIMED, ended(Outcome.ERROR_EVENT, 200, "timeout")),
    (BAD, ended(Outcome.RESPONSE, 400, "invalid_request")),
])  # fmt: skip
def test_a_result_that_is_allowed(request_: SoakRequest, result: RequestResult) -> None:
    assert request_.outcomes == COMPLETE and failed_checks(unexpected=[(request_, result)]) == []


def test_results_that_were_not_kept_fail() -> None:
    (failed,) = failed_checks(num_dropped=1)
    assert FINAL_OUTPUT in failed


def test_an_internal_error_fails_also_during_a_fault() -> None:
    result = ended(Outcome.RESPONSE, 500, "internal_error", started_at=207.0)
    (failed,) = failed_checks(unexpected=[(CHAT, result)])
    assert "5xx" in failed


def test_only_a_dead_engine_excuses_and_only_while_it_is_away() -> None:
    def is_excused(fault: Fault, started_at: float, effects_until: float | None) -> bool:
        result = ended(Outcome.RESPONSE, 503, started_at=1000.0)
        return is_during_fault(result, [InjectedFault(fault, started_at, effects_until)])

    assert is_excused(Fault.STOP, 900.0, None) and is_excused(Fault.KILL, 1000.5, 1010.0)
    assert not is_excused(Fault.BROKEN_KEYS, 900.0, 1100.0)
    assert not is_excused(Fault.KILL, 900.0, 999.0) and not is_excused(Fault.KILL, 1002.0, 1009.0)


@for_each("more", [
    {"num_requests": 0}, {"num_rejected": 0}, {"exit_code": 1}, {"num_temp_files": 1}, {"faults": [KILLED, KILLED]},
    {"faults": []}, {"faults": [InjectedFault(Fault.KILL, 200.0, None)]},
])  # fmt: skip
def test_each_of_these_fails(more: dict[str, Any]) -> None:
    assert failed_checks(**more)
