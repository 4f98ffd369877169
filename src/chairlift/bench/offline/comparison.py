"""Comparison: runs engine options and peers (arms) in alternation on one workload and compares their medians.

Each run of an arm is a fresh process with the same workload and the same number of threads. The result is the ratio
of the medians, because a single throughput says little on a noisy machine.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import send
from chairlift.bench.peers.registry import OWN_NAME, Peer, own_command
from chairlift.bench.report.machine_noise import wait_until_quiet
from chairlift.bench.workload.workload import Workload
from chairlift.core.errors import ConfigError
from chairlift.llm.builtin_models import RANDOM

MAX_QUIET_WAIT_SECONDS = 30.0
"""Longest wait of a run for low other load, in seconds; the run starts after it in any case and reports the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison.

    Attributes:
        name: its name in tables and reports.
        command: see Peer.
        options: engine options of this arm, in addition to those that all arms share.
        settings: settings of a peer.
        is_peer: whether another engine runs the workload.
    """

    name: str
    command: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    is_peer: bool = False


@dataclass(slots=True)
class ArmRuns:
    """The results of one arm's runs, in the order in which they ran."""

    arm: Arm
    runs: list[dict[str, Any]] = field(default_factory=list)

    def median_run(self) -> dict[str, Any]:
        """Return the run whose output throughput is the (lower) median."""
        ordered = sorted(self.runs, key=lambda run: run["output_tokens_per_second"])
        return ordered[(len(ordered) - 1) // 2]

    @property
    def failed(self) -> int:
        """Number of requests that failed, over all runs."""
        return sum(run["requests"]["failed"] for run in self.runs)

    def median(self, *path: str) -> float | None:
        """Return the median over the runs of one value, such as ("latency_seconds", "p99").

        Returns None when a run lacks the value.
        """
        values = [_value_at(run, path) for run in self.runs]
        return None if None in values else float(statistics.median(values))


def _value_at(run: Mapping[str, Any], path: Sequence[str]) -> Any:
    node: Any = run
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def arms_of(compared: Mapping[str, Sequence[Any]], peers: Sequence[Peer]) -> list[Arm]:
    """Return one arm for each combination of the compared options, followed by one for each peer."""
    arms = []
    for values in itertools.product(*compared.values()):
        options = dict(zip(compared, values, strict=True))
        name = ",".join(f"{name}={value}" for name, value in options.items()) or OWN_NAME
        arms.append(Arm(name=name, command=own_command("offline.offline_benchmark"), options=options))
    return arms + [
        Arm(name=peer.name, command=peer.command, settings=peer.setting_values, is_peer=True) for peer in peers
    ]


def run_interleaved(
    arms: Sequence[Arm], spec: RunSpec, *, repeat: int, threads: int | None = None, shown: bool = False,
    note: Callable[[Arm, int, dict[str, Any]], None] | None = None,
) -> list[ArmRuns]:  # fmt: skip
    """Run all arms `repeat` times in alternation, each run in its own process.

    Every second round goes in the opposite order, so that a machine that slows down affects all arms alike. Each run
    first waits until other load is low, at most MAX_QUIET_WAIT_SECONDS (machine_noise.py). `note` is called with each
    result.

    Raises what an arm's run raises, and ConfigError when two arms did not run the same workload.
    """
    all_runs = [ArmRuns(arm) for arm in arms]
    for round_number in range(repeat):
        for arm_runs in all_runs[::-1] if round_number % 2 else all_runs:
            arm_spec = _arm_spec(arm_runs.arm, spec, threads)
            gaps = wait_until_quiet(MAX_QUIET_WAIT_SECONDS)
            run = {**send(arm_runs.arm.command, arm_spec, threads=threads, shown=shown), "gaps_before": asdict(gaps)}
            _check_same_work(all_runs, arm_runs.arm, run)
            arm_runs.runs.append(run)
            if note is not None:
                note(arm_runs.arm, round_number, run)
    return all_runs


def _arm_spec(arm: Arm, spec: RunSpec, threads: int | None) -> RunSpec:
    """Return the run specification of one arm; `threads` is an engine option, not a peer's."""
    options = {**spec.options, **arm.options}
    if threads is not None and not arm.is_peer:
        options.setdefault("cpu_threads", threads)
    return RunSpec(model=spec.model, options=options, workload=spec.workload, settings=dict(arm.settings))


def _check_same_work(all_runs: Sequence[ArmRuns], arm: Arm, run: Mapping[str, Any]) -> None:
    for other in all_runs:
        if other.runs and other.runs[0]["workload_digest"] != run["workload_digest"]:
            raise ConfigError(f"{arm.name} and {other.arm.name} did not get the same workload")


def check_comparison(arms: Sequence[Arm], model: str | None, workload: Workload) -> None:
    """Check that the peers among the arms can run the model and the workload.

    Raises ConfigError when one cannot.
    """
    peers = [arm.name for arm in arms if arm.is_peer]
    if peers and model == RANDOM:
        raise ConfigError(f"{peers[0]} cannot run {RANDOM}, which only Chairlift runs", option="against")
    if peers and not workload.arrives_at_once:
        raise ConfigError(f"{peers[0]} runs only workloads whose requests arrive all at once", option="against")


SPEEDS = ("output_tokens_per_second", "total_tokens_per_second")
COMPARED: tuple[tuple[str, ...], ...] = (
    *((name,) for name in SPEEDS), ("latency_seconds", "p99"), ("ttft_seconds", "mean"),
)  # fmt: skip
"""The values of each arm in the ratio table."""


def ratios(all_runs: Sequence[ArmRuns]) -> list[dict[str, Any]]:
    """Compare the first arm with each arm, by medians over the runs and their ratio.

    Latencies cover only requests that did not fail (`failed` counts the others over all runs). So there is no ratio of
    latencies when the numbers of failed requests differ. `by_turn` has the ratio of output throughput for each round,
    which shows how noisy the machine was.
    """
    first = all_runs[0]
    rows = []
    for other in all_runs:
        row: dict[str, Any] = {"arm": other.arm.name, "failed": other.failed}
        for path in COMPARED:
            first_median, other_median = first.median(*path), other.median(*path)
            row[".".join(path)] = other_median
            comparable = path[0] in SPEEDS or other.failed == first.failed
            row["first_over_this." + ".".join(path)] = _ratio(first_median, other_median) if comparable else None
        pairs = zip(first.runs, other.runs, strict=True)
        row["by_turn"] = [_ratio(a["output_tokens_per_second"], b["output_tokens_per_second"]) for a, b in pairs]
        rows.append(row)
    return rows


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if other and value is not None else None
