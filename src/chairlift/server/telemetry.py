"""Telemetry: what happens at the door and in the engine becomes metrics; nobody else here touches a metric."""

import os
import resource
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import Timeline, Usage
from chairlift.engine.stats import CacheState, StepStats
from chairlift.observability.metric_aliases import SETS, Aliases
from chairlift.observability.metrics import Metrics
from chairlift.web.access_log import Seen
from chairlift.web.admission import Admission
from chairlift.web.middleware import GONE

MAX_RECORDS = 1000
"""Requests of which it is remembered how they went."""

PAGE_BYTES = resource.getpagesize()
TICKS = os.sysconf("SC_CLK_TCK")
"""Of /proc, a second."""


class Telemetry:
    """Owns the metrics of one replica, and what is remembered of its last requests."""

    def __init__(self, model: str, aliases: tuple[str, ...]) -> None:
        self.metrics = Metrics()
        self._records: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._preemptions = 0
        self._restarts = 0
        self._cpu: dict[str, tuple[int, float]] = {}
        metrics = self.metrics
        self._inter_token = metrics.histogram("inter_token_seconds")
        self._output_tokens = metrics.counter("output_tokens")
        self._phases = {
            phase: metrics.histogram("step_seconds", phase) for phase in ("schedule", "launch", "collect", "commit")
        }
        for name in aliases:
            registry = CollectorRegistry()
            registry.register(Aliases(metrics, SETS[name], {"model_name": model} if name == "vllm" else {}))
            metrics.more.append(registry)

    # -- requests --------------------------------------------------------------------------------------------------

    def answered(self, seen: Seen) -> None:
        """Count an answer of HTTP; also as a refusal where an error came before any work."""
        status = str(seen.status or 0)
        self.metrics.counter("http_requests", seen.route or "other", _method(seen.method), status).inc()
        if seen.code and not seen.begun and seen.status != GONE:
            self.refused(seen.code)

    def refused(self, code: str) -> None:
        """Count a request that was not begun."""
        self.metrics.counter("refusals", code).inc()

    def aborted(self, reason: str) -> None:
        """Count a generation that was cut off."""
        self.metrics.counter("aborts", reason).inc()

    def first_token(self, seconds: float) -> None:
        """Note how long a first token took."""
        self.metrics.histogram("first_token_seconds").observe(seconds)

    def news(self, tokens: int, gap: float | None) -> None:
        """Note new tokens, `gap` seconds after the last ones."""
        self._output_tokens.inc(tokens)
        if gap is not None:
            self._inter_token.observe(gap)

    def over(
        self, request_id: str, outcome: str, seconds: float, usage: Usage | None, timeline: Timeline | None
    ) -> None:
        """Note the end of a generation."""
        metrics = self.metrics
        metrics.counter("requests", outcome).inc()
        metrics.histogram("request_seconds").observe(seconds)
        if usage is not None:
            metrics.counter("prompt_tokens").inc(usage.prompt_tokens)
            metrics.counter("cached_tokens").inc(usage.cached_tokens)
            metrics.histogram("request_prompt_tokens").observe(usage.prompt_tokens)
            metrics.histogram("request_output_tokens").observe(usage.completion_tokens)
        moments = () if timeline is None else timeline.events
        begun = next((moment.at for moment in moments if moment.name == "scheduled"), None)
        if begun is not None:
            metrics.histogram("queue_seconds").observe(begun)
        self._records.pop(request_id, None)  # the last one of an id counts, as the newest
        self._records[request_id] = {
            "request_id": request_id, "outcome": outcome, "seconds": round(seconds, 6),
            "events": [list(moment) for moment in moments],
            "wait_seconds": {} if timeline is None else dict(timeline.wait_seconds),
            "usage": None if usage is None else [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
        }  # fmt: skip
        while len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)

    def record(self, request_id: str) -> dict[str, Any] | None:
        """Return what is remembered of a request that is over."""
        return self._records.get(request_id)

    # -- the engine ------------------------------------------------------------------------------------------------

    def step(self, stats: StepStats, budget: int) -> None:
        """Note a step; called from the engine's thread."""
        metrics = self.metrics
        for phase, milliseconds in (
            ("schedule", stats.schedule_ms), ("launch", stats.launch_ms), ("collect", stats.collect_ms),
            ("commit", stats.commit_ms),
        ):  # fmt: skip
            self._phases[phase].observe(milliseconds / 1000)
        decoded = stats.num_tokens - stats.num_prefill_tokens
        metrics.counter("steps").inc()
        metrics.counter("prefill_tokens").inc(stats.num_prefill_tokens)
        metrics.counter("decode_tokens").inc(decoded)
        metrics.histogram("step_sequences").observe(stats.num_sequences)
        metrics.histogram("step_tokens").observe(stats.num_tokens)
        metrics.histogram("budget_use").observe(min(1.0, stats.num_tokens / budget))
        metrics.gauge("running_requests").set(stats.running)
        metrics.gauge("queued_requests").set(stats.waiting)
        if stats.num_prefill_tokens and decoded:
            metrics.gauge("decode_prefill_ratio").set(decoded / stats.num_prefill_tokens)
        if stats.preemptions < self._preemptions:  # another engine counts from zero
            self._preemptions = 0
        metrics.counter("preemptions").inc(stats.preemptions - self._preemptions)
        self._preemptions = stats.preemptions

    def pulse(
        self, state: ReplicaState, load: LoadReport, cache: CacheState | None, line: Admission, restarts: int,
        block_bytes: float,
    ) -> None:  # fmt: skip
        """Note how things stand; called now and then."""
        metrics = self.metrics
        metrics.gauge("ready").set(state is ReplicaState.READY)
        metrics.gauge("open_requests").set(line.open_requests)
        metrics.gauge("waiting_requests").set(line.waiting_requests)
        metrics.gauge("waiting_tokens").set(line.waiting_tokens)
        metrics.gauge("running_requests").set(load.running_requests)
        metrics.gauge("queued_requests").set(load.waiting_requests)
        metrics.counter("engine_restarts").inc(restarts - self._restarts)
        self._restarts = restarts
        if load.prompt_tokens:
            metrics.gauge("cache_hit_rate").set(load.cached_tokens / load.prompt_tokens)
        if cache is None:
            return
        held, total = cache["allocated_blocks"], cache["total_blocks"]
        for name, blocks in (("used", held), ("cached", cache["cached_blocks"]), ("free", cache["free_blocks"])):
            metrics.gauge("kv_blocks", name).set(blocks)
        metrics.gauge("kv_use").set(held / total if total else 0.0)
        metrics.gauge("kv_bytes").set(total * block_bytes)
        metrics.gauge("kv_free_bytes").set((total - held) * block_bytes)

    def processes(self, pids: dict[str, int]) -> None:
        """Note what processes use."""
        for name, pid in pids.items():
            found = _process(pid)
            if found is None:
                continue
            cpu, memory, files = found
            of, before = self._cpu.get(name, (pid, 0.0))
            self.metrics.counter("process_cpu_seconds", name).inc(max(0.0, cpu - before) if of == pid else cpu)
            self._cpu[name] = pid, cpu
            self.metrics.gauge("process_memory_bytes", name).set(memory)
            if files is not None:
                self.metrics.gauge("process_open_files", name).set(files)


def _method(method: str) -> str:
    return method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"


def _process(pid: int) -> tuple[float, int, int | None] | None:
    """Return seconds of processor time, resident bytes and open files; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, ValueError):
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE_BYTES, files
