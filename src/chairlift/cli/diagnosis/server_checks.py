"""ServerChecks: what is wrong with one live server, replica or router, by two snapshots of it.

The limits are those of the alerts in deploy/prometheus/rules.
"""

import re
import time
from collections.abc import Iterator

from chairlift.cli.diagnosis.finding import ERROR, WARNING, Finding
from chairlift.cli.diagnosis.metrics_page import Labels, MetricsPage, increase, quantile
from chairlift.cli.diagnosis.server_snapshot import ServerSnapshot

HOST_MEMORY_RATIO = 0.92
OWN_MEMORY_RATIO = 0.95
GPU_MEMORY_RATIO = 0.98
CACHE_RATIO = 0.95
PREEMPTIONS_PER_SECOND = 0.5
QUEUE_SECONDS = 2
FIRST_TOKEN_SECONDS = 5
MISSED_RATIO = 0.05
ERROR_RATIO = 14.4 * 0.001
REJECTIONS_PER_SECOND = 0.1
CERTIFICATE_DAYS, CERTIFICATE_DAYS_LEFT = 14, 2
"""Days before the end of a certificate from which it is a warning, and from which it is an error."""

OPEN_FILES_RATIO = 0.8
CLOCK_SECONDS = 5.0
"""Difference of clocks from which tokens with a short lifetime and logs of several machines are misread."""

REJECTION_CODES = ("overloaded", "queue_full", "deadline_unreachable")
_DENIED, NOT_FOUND = (401, 403), 404
TLS_ERRORS = {
    "untrusted": re.compile("CERTIFICATE_VERIFY_FAILED"),
    "client_certificate": re.compile(
        "ALERT_CERTIFICATE_REQUIRED|ALERT_UNKNOWN_CA|closed connection without response|reset by peer|Broken pipe"
        "|EOF occurred"
    ),
}
"""Check -> the errors of connections with TLS that it is about.

A server that misses the client's certificate may close the connection before it has said so.
"""

MIN_REQUESTS = 20
"""Requests of which a share of 5 % is at least one whole request; of fewer, one slow request would be a finding."""

DAY = 86_400


class ServerChecks:
    """The checks of one server, by the whole snapshot and the one before, which has load and metrics."""

    def __init__(self, before: ServerSnapshot, now: ServerSnapshot) -> None:
        self.url, self.before, self.now = now.url, before, now
        self.seconds = max(1e-6, now.at_seconds - before.at_seconds)
        self.has_rates = before.parts["metrics"].is_ok and now.parts["metrics"].is_ok
        self.new = page_of(now)
        self.old = page_of(before) if self.has_rates else self.new  # without both pages nothing has changed

    def run(self) -> Iterator[Finding]:
        """Yield what is wrong."""
        if not self.now.is_reachable:
            first = next(iter(self.now.parts.values()))
            errors = TLS_ERRORS if self.url.startswith("https:") else {}
            check = next((name for name, words in errors.items() if words.search(first.error)), "unreachable")
            yield self.find(check, ERROR, f"{self.url} does not answer: {first.error}")
            return
        yield from self._identity()
        yield from self._access()
        yield from self._readiness()
        yield from self._memory()
        yield from self._cache()
        yield from self._latency()
        yield from self._failures()
        yield from self._engine()
        yield from self._process()

    def find(self, check: str, level: str, what: str) -> Finding:
        """Return a finding about this server."""
        return Finding(check=check, level=level, server=self.url, what=what)

    def _identity(self) -> Iterator[Finding]:
        parts = [self.now.parts[name] for name in ("version", "load", "metrics")]
        is_known = self.now.object("version") or self.now.object("load") or b"chairlift_" in parts[-1].body
        if not is_known and all(part.status and part.status not in _DENIED for part in parts):
            statuses = sorted({part.status for part in parts})
            what = f"{self.url} is no Chairlift server: /version, /load and /metrics have status "
            what += ", ".join(map(str, statuses))
            redirect = "; it redirects, perhaps to https://" if any(300 <= each < 400 for each in statuses) else ""
            content = " and other content" if statuses == [200] else ""
            yield self.find("not_chairlift", ERROR, what + content + redirect)

    def _access(self) -> Iterator[Finding]:
        for name, part in self.now.parts.items():
            answer = f"{part.path} has status {part.status}"
            if name == "debug" and part.status == NOT_FOUND:
                what = f"{answer}: the server has no admin key, and no routes for administrators without one"
                yield self.find("server_admin_key", WARNING, what)
            elif name == "debug" and part.status in _DENIED:
                reason = "the admin key is rejected" if part.had_key else "no admin key was given"
                yield self.find("admin_key", WARNING, f"{answer}: {reason}")
            elif name == "load" and part.status in _DENIED:
                check, reason = ("key_rejected", "the API key is rejected") if part.had_key else (
                    "no_key", "no API key was given"
                )  # fmt: skip
                yield self.find(check, ERROR, f"{answer}: {reason}")
            if (part.error or part.status >= 500) and name not in ("readyz", "health"):
                reason = part.error or f"status {part.status}"
                yield self.find("partial", ERROR if name == "livez" else WARNING, f"{part.path} failed: {reason}")

    def _readiness(self) -> Iterator[Finding]:
        part, debug = self.now.parts["readyz"], self.now.object("debug")
        if not part.is_ok:
            health = self.now.parts["health"].object
            reason = debug.get("reason") or health.get("reason") or part.error or f"status {part.status}"
            state = part.object.get("state") or health.get("state") or "not ready"
            yield self.find("not_ready", ERROR, f"the server is {state}: {reason}")

    def _memory(self) -> Iterator[Finding]:
        for name, limit, what in (
            ("host_memory_usage_ratio", HOST_MEMORY_RATIO, "the machine's or the container's memory"),
            ("memory_usage_ratio", OWN_MEMORY_RATIO, "the memory that the server may use"),
        ):
            for _, ratio in self.new.values(name):
                if ratio > limit:
                    yield self.find("memory", WARNING, f"{ratio:.0%} of {what} is in use, the limit is {limit:.0%}")
        totals = {labels.get("gpu"): value for labels, value in self.new.values("gpu_memory_total_bytes")}
        for labels, used in self.new.values("gpu_memory_used_bytes"):
            total = totals.get(gpu := labels.get("gpu"))
            if total and used / total > GPU_MEMORY_RATIO:
                what = f"{used / total:.0%} of the memory of GPU {gpu} is in use, the limit is {GPU_MEMORY_RATIO:.0%}"
                yield self.find("gpu_memory", WARNING, what)

    def _cache(self) -> Iterator[Finding]:
        usage, waiting = self.new.total("kv_cache_usage_ratio") or 0.0, self.new.total("sequences_waiting") or 0.0
        if usage > CACHE_RATIO and waiting > 0:
            what = f"{usage:.0%} of the KV cache is held by requests, and {waiting:.0f} sequences wait"
            yield self.find("cache_full", WARNING, what)
        rate = increase(self.old, self.new, "preemptions_total") / self.seconds
        if rate > PREEMPTIONS_PER_SECOND:
            what = f"{rate:.1f} sequences a second are preempted, the limit is {PREEMPTIONS_PER_SECOND:g}"
            yield self.find("preemptions", WARNING, what)

    def _latency(self) -> Iterator[Finding]:
        expected = self.now.object("load").get("expected_wait_seconds")
        if isinstance(expected, int | float) and expected > QUEUE_SECONDS:
            what = f"the expected wait in the queue is {expected:.1f} s, the limit is {QUEUE_SECONDS} s"
            yield self.find("queue_wait", WARNING, what)
        elif (late := self._p95("request_queue_time_seconds", QUEUE_SECONDS)) is not None:
            yield self.find("queue_wait", WARNING, f"5 % of {late} in the queue, the limit is {QUEUE_SECONDS} s")
        targets = {labels.get("slo"): value for labels, value in self.new.values("slo_target_seconds")}
        for slo, check, name in (("ttft", "first_token", "the first token"), ("itl", "token_latency", "each token")):
            if slo in targets:
                missed, number, when = self._missed(slo)
                if number >= MIN_REQUESTS and missed / number > MISSED_RATIO:
                    what = f"{missed / number:.0%} of {number:.0f} requests {when} missed the target of {name}, "
                    yield self.find(check, WARNING, what + f"{targets[slo]:g} s; the limit is {MISSED_RATIO:.0%}")
        if "ttft" not in targets and (late := self._p95("time_to_first_token_seconds", FIRST_TOKEN_SECONDS)):
            what = f"5 % of {late} for the first token, the limit is {FIRST_TOKEN_SECONDS} s"
            yield self.find("first_token", WARNING, what)

    def _p95(self, name: str, limit: float) -> str | None:
        """Return in words what 5 % of the requests have if that is above the limit."""
        found, when = quantile(self.old, self.new, name, 0.95), f"in the last {self.seconds:.1f} s"
        if found is None or found[1] < MIN_REQUESTS:
            found, when = quantile(None, self.new, name, 0.95), "since the start"
        if found is None or found[1] < MIN_REQUESTS or found[0] <= limit:
            return None
        return f"{found[1]} requests {when} waited about {found[0]:g} s or more"

    def _missed(self, slo: str) -> tuple[float, float, str]:
        """Return requests that missed a target, all requests, and the time that both are of."""

        def is_missed(labels: Labels) -> bool:
            return labels.get("slo") == slo and labels.get("met") == "false"

        def is_counted(labels: Labels) -> bool:
            return labels.get("slo") == slo

        name = "slo_requests_total"
        if (number := increase(self.old, self.new, name, is_counted)) >= MIN_REQUESTS:
            return increase(self.old, self.new, name, is_missed), number, f"in the last {self.seconds:.1f} s"
        return self.new.total(name, is_missed) or 0.0, self.new.total(name, is_counted) or 0.0, "since the start"

    def _failures(self) -> Iterator[Finding]:
        def has_failed(labels: Labels) -> bool:
            return labels.get("result") == "server_error"

        def is_counted(labels: Labels) -> bool:
            return labels.get("result") in ("success", "server_error")

        name, empty = "model_requests_total", MetricsPage("")
        for level, page, when in (
            (ERROR, self.old, f"in the last {self.seconds:.1f} s"), (WARNING, empty, "since the start"),
        ):  # fmt: skip
            number, failed = increase(page, self.new, name, is_counted), increase(page, self.new, name, has_failed)
            if number and failed / number > ERROR_RATIO:
                what = f"{failed:.0f} of {number:.0f} requests {when} failed, the limit is {ERROR_RATIO:.1%}"
                yield self.find("errors", level, what)
                break
        rejected = increase(
            self.old, self.new, "requests_rejected_total", lambda labels: labels.get("code") in REJECTION_CODES
        )
        if rejected / self.seconds > REJECTIONS_PER_SECOND:
            what = f"{rejected / self.seconds:.1f} requests a second are rejected, the limit is {REJECTIONS_PER_SECOND}"
            yield self.find("rejections", WARNING, what)

    def _engine(self) -> Iterator[Finding]:
        engine = self.now.object("debug").get("engine") or {}
        silence = str(engine.get("error") or "") if "did not answer" in str(engine.get("error")) else ""
        running = min(page.total("sequences_running") or 0.0 for page in (self.old, self.new))
        if self.has_rates and running and not increase(self.old, self.new, "steps_total"):
            seconds = max(self.seconds, self.now.object("load").get("step_age_seconds") or 0.0)
            what = f"no step has ended in {seconds:.1f} s while {running:.0f} sequences run"
            yield self.find("hang", ERROR, f"{what}; {silence}" if silence else what)
        elif silence:
            yield self.find("hang", WARNING, silence)
        restarts, recent = self.new.total("engine_restarts_total") or 0.0, 0.0
        if restarts:
            recent = increase(self.old, self.new, "engine_restarts_total")
            yield self.find("restarts", ERROR if recent else WARNING, f"the engine was restarted {restarts:.0f} times")
        for error in engine.get("integrity_errors") or ():
            yield self.find("integrity", ERROR, f"the KV cache is not consistent: {error}")

    def _process(self) -> Iterator[Finding]:
        for _, expiry in self.new.values("tls_certificate_expiry_timestamp_seconds"):
            days = (expiry - time.time()) / DAY
            if expiry > 0 and days < CERTIFICATE_DAYS:
                what = "the certificate has expired" if days < 0 else f"the certificate expires in {days:.1f} days"
                yield self.find("certificate", ERROR if days < CERTIFICATE_DAYS_LEFT else WARNING, what)
        debug = self.now.object("debug")
        for name, facts in (debug.get("processes") or {}).items():
            used, limit = facts.get("open_files"), facts.get("max_open_files")
            if used and limit and used / limit > OPEN_FILES_RATIO:
                yield self.find("open_files", WARNING, f"the process {name} has {used} open files of {limit}")
        if isinstance(there := debug.get("time"), int | float):
            ahead, behind = there - self.now.wall_to, self.now.wall_from - there
            if max(ahead, behind) > CLOCK_SECONDS:
                words = f"{ahead:.0f} s ahead of" if ahead > 0 else f"{behind:.0f} s behind"
                yield self.find("clock", WARNING, f"the server's clock is {words} that of this machine")


def page_of(snapshot: ServerSnapshot) -> MetricsPage:
    """Return the metrics of a snapshot, none where they could not be read."""
    part = snapshot.parts.get("metrics")
    return MetricsPage(part.body.decode(errors="replace") if part is not None and part.is_ok else "")
