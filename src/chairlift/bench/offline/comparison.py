"""Arms: what is compared in one run, engine options against each other or against peers, in turns.

A speed is never told alone: the arms take turns, each turn of each arm in a fresh process with the same number of
threads, on the same workload, and what counts is the ratio of their medians.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import send
from chairlift.bench.peers.registry import OURS, Peer, own_command
from chairlift.bench.report.machine_noise import wait_until_quiet
from chairlift.bench.workload.workload import Workload
from chairlift.core.errors import ConfigError
from chairlift.llm.model_names import RANDOM

PATIENCE_SECONDS = 30.0
"""That a turn waits for a quiet machine; then it begins all the same, and the report tells what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison.

    Attributes:
        name: in tables and reports.
        command: see Peer.
        options: of the engine, beside those that all arms share.
        settings: of a peer.
        is_peer: whether somebody else runs it.
    """

    name: str
    command: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    is_peer: bool = False


@dataclass(slots=True)
class ArmRuns:
    """What the turns of one arm have measured, in order."""

    arm: Arm
    runs: list[dict[str, Any]] = field(default_factory=list)

    def median_run(self) -> dict[str, Any]:
        """Return the run whose output throughput is the (lower) median."""
        ordered = sorted(self.runs, key=lambda run: run["output_tokens_per_second"])
        return ordered[(len(ordered) - 1) // 2]

    @property
    def failed(self) -> int:
        """Requests that failed, over all runs."""
        return sum(run["requests"]["failed"] for run in self.runs)

    def median(self, *path: str) -> float | None:
        """Return the median over the runs of one number, such as ("latency_seconds", "p99"); None where one lacks."""
        values = [_at(run, path) for run in self.runs]
        return None if None in values else float(statistics.median(values))


def _at(run: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = run
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def arms_of(compared: Mapping[str, Sequence[Any]], peers: Sequence[Peer]) -> list[Arm]:
    """Return our arms, one for each combination of the options compared, and then the peers'."""
    arms = []
    for values in itertools.product(*compared.values()):
        options = dict(zip(compared, values, strict=True))
        name = ",".join(f"{name}={value}" for name, value in options.items()) or OURS
        arms.append(Arm(name=name, command=own_command("offline.offline_benchmark"), options=options))
    return arms + [Arm(name=peer.name, command=peer.command, settings=peer.given, is_peer=True) for peer in peers]


def run_interleaved(
    arms: Sequence[Arm], order: RunSpec, *, repeat: int, threads: int | None = None, shown: bool = False,
    note: Callable[[Arm, int, dict[str, Any]], None] | None = None,
) -> list[ArmRuns]:  # fmt: skip
    """Run every arm once, then all of them again, `repeat` times, each in a process of its own.

    Every other time they go in the opposite order, so that a machine that slows down slows nobody more than the others,
    and a turn waits a while for the machine's neighbours to be quiet (quiet.py).
    `note` hears of each turn's result. Raises what an arm's run raises; ConfigError when two arms did not do the same
    work.
    """
    turns = [ArmRuns(arm) for arm in arms]
    for round_number in range(repeat):
        for mine in turns[::-1] if round_number % 2 else turns:
            own = _order_of(mine.arm, order, threads)
            gaps = wait_until_quiet(PATIENCE_SECONDS)
            run = {**send(mine.arm.command, own, threads=threads, shown=shown), "gaps_before": asdict(gaps)}
            _check_same_work(turns, mine.arm, run)
            mine.runs.append(run)
            if note is not None:
                note(mine.arm, round_number, run)
    return turns


def _order_of(arm: Arm, order: RunSpec, threads: int | None) -> RunSpec:
    """Return an arm's own order; threads are an option of ours, and in the environment for everybody."""
    options = {**order.options, **arm.options}
    if threads is not None and not arm.is_peer:
        options.setdefault("cpu_threads", threads)
    return RunSpec(model=order.model, options=options, workload=order.workload, settings=dict(arm.settings))


def _check_same_work(turns: Sequence[ArmRuns], arm: Arm, run: Mapping[str, Any]) -> None:
    for other in turns:
        if other.runs and other.runs[0]["workload_digest"] != run["workload_digest"]:
            raise ConfigError(f"{arm.name} and {other.arm.name} did not get the same workload")


def check_comparison(arms: Sequence[Arm], model: str | None, workload: Workload) -> None:
    """Refuse peers where there is nothing that they could run. Raises ConfigError."""
    peers = [arm.name for arm in arms if arm.is_peer]
    if peers and model == RANDOM:
        raise ConfigError(f"{peers[0]} cannot run {RANDOM}, which is ours alone", option="against")
    if peers and not workload.arrives_at_once:
        raise ConfigError(f"{peers[0]} runs only workloads whose requests arrive all at once", option="against")


SPEEDS = ("output_tokens_per_second", "total_tokens_per_second")
COMPARED: tuple[tuple[str, ...], ...] = (
    *((name,) for name in SPEEDS), ("latency_seconds", "p99"), ("ttft_seconds", "mean"),
)  # fmt: skip
"""What the ratio table tells of each arm."""


def ratios(turns: Sequence[ArmRuns]) -> list[dict[str, Any]]:
    """Compare the first arm with each: medians over the turns, and how many times the other's value the first has.

    Latencies are of the requests that did not fail (`failed` counts those that did, over all turns), so where not as
    many failed there is no ratio of latencies. `by_turn` are the ratios of output throughput turn by turn, which show
    how far the machine wavered.
    """
    first = turns[0]
    rows = []
    for other in turns:
        row: dict[str, Any] = {"arm": other.arm.name, "failed": other.failed}
        for path in COMPARED:
            mine, theirs = first.median(*path), other.median(*path)
            row[".".join(path)] = theirs
            comparable = path[0] in SPEEDS or other.failed == first.failed
            row["first_over_this." + ".".join(path)] = _ratio(mine, theirs) if comparable else None
        pairs = zip(first.runs, other.runs, strict=True)
        row["by_turn"] = [_ratio(a["output_tokens_per_second"], b["output_tokens_per_second"]) for a, b in pairs]
        rows.append(row)
    return rows


def _ratio(mine: float | None, theirs: float | None) -> float | None:
    return mine / theirs if theirs and mine is not None else None
