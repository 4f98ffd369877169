"""Each check of a server finds its fault, names the measured value, and is silent about a healthy server."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.diagnosis import server_checks
from chairlift.cli.diagnosis.check_remedies import CHECKS
from chairlift.cli.diagnosis.finding import ERROR, WARNING, Finding
from chairlift.cli.diagnosis.server_checks import ServerChecks
from chairlift.cli.diagnosis.server_snapshot import Part, ServerSnapshot
from support_diagnosis import snapshot
from support_shares import for_each

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules" / "alerts.yml"
BUCKETS = ("1.0", "5.0", "10.0", "+Inf")


def found(before: ServerSnapshot, now: ServerSnapshot) -> list[Finding]:
    return list(ServerChecks(before, now).run())


def buckets(name: str, *counts: int) -> str:
    return "\n".join(f'{name}_bucket{{le="{le}"}} {count}' for le, count in zip(BUCKETS, counts, strict=True))


def slo(name: str, met: int, missed: int) -> str:
    series = "slo_requests_total"
    return (
        f'slo_target_seconds{{slo="{name}"}} 0.5\n{series}{{slo="{name}",met="true",model="m"}} {met}\n'
        f'{series}{{slo="{name}",met="false",model="m"}} {missed}'
    )


def results(success: int, failed: int) -> str:
    name = "model_requests_total"
    return f'{name}{{model="m",result="success"}} {success}\n{name}{{model="m",result="server_error"}} {failed}'


RUNNING = "sequences_running 3\nsteps_total"

FAULTS: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("memory", WARNING, {}, {"metrics": "host_memory_usage_ratio 0.93"}, "93% of the machine's"),
    ("memory", WARNING, {}, {"metrics": "memory_usage_ratio 0.96"}, "96% of the memory"),
    ("gpu_memory", WARNING, {}, {"metrics": 'gpu_memory_used_bytes{gpu="1"} 99\ngpu_memory_total_bytes{gpu="1"} 100'},
     "99% of the memory of GPU 1"),
    ("cache_full", WARNING, {}, {"metrics": "kv_cache_usage_ratio 0.97\nsequences_waiting 4"}, "97% of the KV cache"),
    ("preemptions", WARNING, {"metrics": "preemptions_total 1"}, {"metrics": "preemptions_total 8"}, "3.5 sequences"),
    ("queue_wait", WARNING, {}, {"load": {"expected_wait_seconds": 2.5}}, "2.5 s"),
    ("queue_wait", WARNING, {}, {"metrics": buckets("request_queue_time_seconds", 0, 27, 27, 27)}, "27 requests"),
    ("first_token", WARNING, {}, {"metrics": buckets("time_to_first_token_seconds", 0, 0, 30, 30)}, "about 10 s"),
    ("first_token", WARNING, {"metrics": slo("ttft", 10, 0)}, {"metrics": slo("ttft", 26, 4)}, "20% of 20 requests in"),
    ("first_token", WARNING, {"metrics": slo("ttft", 10, 9)}, {"metrics": slo("ttft", 12, 10)}, "of 22 requests since"),
    ("token_latency", WARNING, {}, {"metrics": slo("itl", 16, 4)}, "20% of 20 requests"),
    ("errors", ERROR, {"metrics": results(90, 10)}, {"metrics": results(95, 15)}, "5 of 10 requests in the last"),
    ("errors", WARNING, {"metrics": results(90, 10)}, {"metrics": results(95, 10)}, "10 of 105 requests since"),
    ("rejections", WARNING, {}, {"metrics": 'requests_rejected_total{code="overloaded"} 4'}, "2.0 requests a second"),
    ("hang", ERROR, {"metrics": f"{RUNNING} 7"}, {"metrics": f"{RUNNING} 7", "load": {"step_age_seconds": 9.5}},
     "no step has ended in 9.5 s while 3 sequences run"),
    ("hang", WARNING, {}, {"debug": {"engine": {"error": "the engine did not answer within 3 s"}}}, "within 3 s"),
    ("restarts", WARNING, {"metrics": "engine_restarts_total 2"}, {"metrics": "engine_restarts_total 2"}, "2 times"),
    ("restarts", ERROR, {"metrics": "engine_restarts_total 2"}, {"metrics": "engine_restarts_total 3"}, "3 times"),
    ("integrity", ERROR, {}, {"debug": {"engine": {"integrity_errors": ["block 7 leaks"]}}}, "block 7 leaks"),
    ("open_files", WARNING, {}, {"debug": {"processes": {"api": {"open_files": 900, "max_open_files": 1024}}}},
     "900 open files of 1024"),
    ("partial", WARNING, {}, {"load": {}, "version": Part(path="/version", status=500)}, "/version failed: status 500"),
    ("server_admin_key", WARNING, {}, {"parts": "debug 404"}, "the server has no admin key"),
    ("admin_key", WARNING, {}, {"parts": "debug 401"}, "the admin key is rejected"),
    ("admin_key", WARNING, {}, {"parts": "debug 401 without"}, "no admin key was given"),
    ("key_rejected", ERROR, {}, {"parts": "load 401"}, "the API key is rejected"),
    ("no_key", ERROR, {}, {"parts": "load 401 without"}, "no API key was given"),
]  # fmt: skip


def made(fields: dict[str, Any], at: float) -> ServerSnapshot:
    fields = dict(fields)
    if text := fields.pop("parts", ""):
        name, status, *without_key = text.split()
        fields[name] = Part(path=f"/{name}", status=int(status), had_key=not without_key)
    parts = {name: fields.pop(name) for name in list(fields) if isinstance(fields[name], Part)}
    now = snapshot(**fields, at=at)
    return replace(now, parts={**now.parts, **parts})


@for_each(("check", "level", "before", "now", "what"), FAULTS)
def test_a_fault_is_found_with_its_value(
    check: str, level: str, before: dict[str, Any], now: dict[str, Any], what: str
) -> None:
    (finding,) = found(made(before, 0.0), made(now, 2.0))
    assert (finding.check, finding.level) == (check, level) and what in finding.what


def test_a_healthy_busy_server_has_no_finding() -> None:
    metrics = "\n".join([
        "kv_cache_usage_ratio 0.94\nsequences_waiting 2\nhost_memory_usage_ratio 0.92\nmemory_usage_ratio NaN",
        buckets("request_queue_time_seconds", 99, 100, 100, 100), slo("ttft", 96, 4), results(1000, 1),
        "tls_certificate_expiry_timestamp_seconds 0\nengine_restarts_total 0",
    ])  # fmt: skip
    steps = [f"{metrics}\n{RUNNING} {number}" for number in (7, 8)]
    load, debug = {"expected_wait_seconds": 0.5}, {"service": "replica", "time": time.time(), "engine": {}}
    assert found(snapshot(steps[0]), snapshot(steps[1], debug, load, at=2.0)) == []


def test_a_few_slow_requests_of_a_server_that_is_idle_are_no_finding() -> None:
    few = "\n".join([
        buckets("request_queue_time_seconds", 0, 0, 1, 1), buckets("time_to_first_token_seconds", 0, 0, 0, 19),
        slo("itl", 0, 19),
    ])  # fmt: skip
    assert found(snapshot(), snapshot(few, at=2.0)) == found(snapshot(few), snapshot(few, at=2.0)) == []


@pytest.mark.parametrize(("days", "level"), [(13.0, WARNING), (1.5, ERROR), (-1.0, ERROR)])
def test_a_certificate_that_expires_soon_is_found(days: float, level: str) -> None:
    metrics = f"tls_certificate_expiry_timestamp_seconds {time.time() + days * 86_400}"
    (finding,) = found(snapshot(), snapshot(metrics, at=2.0))
    assert (finding.check, finding.level) == ("certificate", level)
    assert ("has expired" if days < 0 else f"{days:.1f} days") in finding.what


@pytest.mark.parametrize(("seconds", "words"), [(60.0, "60 s ahead"), (-60.0, "60 s behind"), (4.0, "")])
def test_a_clock_that_differs_is_found(seconds: float, words: str) -> None:
    findings = found(snapshot(), snapshot(debug={"time": time.time() + seconds}, at=2.0))
    assert [each.check for each in findings] == (["clock"] if words else [])
    assert all(words in each.what for each in findings)


@for_each(("error", "check"), [
    ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "untrusted"), ("refused", "unreachable"),
    ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required", "client_certificate"),
    ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "client_certificate"),
    ("Remote end closed connection without response", "client_certificate"),
    ("[Errno 104] Connection reset by peer", "client_certificate"), ("[Errno 32] Broken pipe", "client_certificate"),
])  # fmt: skip
def test_a_certificate_that_is_not_trusted_has_a_remedy_of_its_own(error: str, check: str) -> None:
    made = snapshot()
    parts = {name: replace(part, status=0, error=error) for name, part in made.parts.items()}
    silent, without_tls = (replace(made, url=url, parts=parts) for url in ("https://server", "http://server"))
    assert [each.check for each in found(without_tls, without_tls)] == ["unreachable"]
    (finding,) = found(silent, silent)
    assert (finding.check, finding.level) == (check, ERROR) and error in finding.what
    assert ("with --tls-ca " in CHECKS[check].remedy) == (check == "untrusted")
    assert ("--tls-client-cert" in CHECKS[check].remedy) == (check == "client_certificate")


def test_a_server_that_is_not_ready_says_why() -> None:
    body = b'{"state": "starting", "reason": "the engine starts"}'
    parts = {name: Part(path=f"/{name}", status=503, body=body) for name in ("readyz", "health")}
    (finding,) = found(snapshot(), snapshot(at=2.0, **parts))
    assert (finding.check, finding.level) == ("not_ready", ERROR)
    assert finding.what == "the server is starting: the engine starts"


def test_the_limits_are_those_of_the_alerts() -> None:
    rules = RULES.read_text(encoding="utf-8")
    for text in (
        f"chairlift_host_memory_usage_ratio > {server_checks.HOST_MEMORY_RATIO}",
        f"chairlift_gpu_memory_total_bytes > {server_checks.GPU_MEMORY_RATIO}",
        f"avg_over_time(chairlift_kv_cache_usage_ratio[5m]) > {server_checks.CACHE_RATIO}",
        f"rate(chairlift_preemptions_total[5m]) > {server_checks.PREEMPTIONS_PER_SECOND}",
        f"chairlift_request_queue_time_seconds:p95_5m > {server_checks.QUEUE_SECONDS}",
        f"chairlift_time_to_first_token_seconds:p95_5m > {server_checks.FIRST_TOKEN_SECONDS}",
        f"chairlift_slo_missed:ratio_rate5m > {server_checks.MISSED_RATIO}",
        f"[5m])) > {server_checks.REJECTIONS_PER_SECOND}",
        f"time() + {server_checks.CERTIFICATE_DAYS} * 86400",
        f"time() + {server_checks.CERTIFICATE_DAYS_LEFT} * 86400",
        "> 14.4 * 0.001",
        f'code=~"{"|".join(server_checks.REJECTION_CODES)}"',
    ):
        assert text in rules, text
    assert server_checks.ERROR_RATIO == 14.4 * 0.001
    assert {check for check, *_ in FAULTS} | {"unreachable", "not_ready", "certificate", "clock"} <= CHECKS.keys()


def answering(status: int, body: bytes, *names: str, at: float = 0.0) -> ServerSnapshot:
    made = snapshot(at=at)
    return replace(made, parts={**made.parts, **{n: Part(path=f"/{n}", status=status, body=body) for n in names}})


@pytest.mark.parametrize("status", [200, 308, 404])
def test_a_server_that_is_no_chairlift_is_an_error(status: int) -> None:
    names = ("version", "load", "metrics")
    (first, *_) = found(answering(status, b"<html>", *names), answering(status, b"<html>", *names, at=3.0))
    assert (first.check, first.level) == ("not_chairlift", ERROR) and str(status) in first.what
    assert [word in first.what for word in ("redirects", "other content")] == [status == 308, status == 200]
    denied = answering(401, b"{}", *names, at=3.0)
    assert "not_chairlift" not in [each.check for each in found(denied, denied)]


def test_without_the_first_page_of_metrics_nothing_since_the_start_counts_as_new() -> None:
    metrics = "engine_restarts_total 3\n preemptions_total 900\n sequences_running 2\n steps_total 5\n"
    before, now = answering(503, b"", "metrics"), snapshot(metrics + results(950, 50), at=0.1)
    assert {each.check: each.level for each in found(before, now)} == {"restarts": WARNING, "errors": WARNING}
