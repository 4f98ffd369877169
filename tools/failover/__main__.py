"""Kill replicas behind a router while it streams: `python -m failover --rounds 50 --streams 64`.

Three real replicas, two routers; each response must equal that of an uncut run. The exit code is 0 if all do. The
rounds kill a replica with SIGKILL after 0, 1 and 100 delivered tokens; further rounds stop it, break its connections,
and drain it. Then a router is killed, and all replicas at once.
"""

import argparse
import asyncio
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from failover.failover_round import References, RoundResult, run_round
from failover.fault import Fault
from failover.fleet import NUM_REPLICAS, Fleet
from failover.request_kinds import KINDS, Model
from failover.scenarios import SCENARIOS, fill_replica

NUM_DELIVERED = (0, 1, 100)
ROUTER_OPTIONS = ("--inter-token-timeout", "2", "--first-token-timeout", "6")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds with SIGKILL (default 50)")
    parser.add_argument("--streams", type=int, default=64, help="open requests of a round (default 64)")
    parser.add_argument("--other-rounds", type=int, default=1, help="rounds of each other fault and number of tokens")
    parser.add_argument("--models", nargs="+", default=[model.name.lower() for model in Model],
                        choices=[model.name.lower() for model in Model], help="what the replicas serve")  # fmt: skip
    parser.add_argument("--into", type=Path, default=Path("build/failover"), help="folder of report.json and logs")
    options = parser.parse_args(arguments)
    started_at = time.time()
    rounds = asyncio.run(_run(options))
    problems = [problem for each in rounds for problem in each.problems]
    requests_by_kind = sum((Counter(each.num_requests) for each in rounds), Counter[str]())
    report: dict[str, Any] = {
        "rounds": len(rounds),
        "requests": requests_by_kind.total(),
        "requests_on_lost_replicas": sum(each.num_on_victim for each in rounds),
        "requests_by_kind": requests_by_kind,
        "problems": len(problems),
        "streams": options.streams,
        "seconds": round(time.time() - started_at, 1),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "results": [asdict(each) for each in rounds],
    }
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _print(f"{report['rounds']} rounds, {report['requests']} requests, {len(problems)} problems")
    return 1 if problems else 0


async def _run(options: argparse.Namespace) -> list[RoundResult]:
    results: list[RoundResult] = []
    models = [Model[name.upper()] for name in options.models]
    for place, model in enumerate(models):
        num_kills = options.rounds // len(models) + (place < options.rounds % len(models))
        async with Fleet(model, options.into / model.name.lower(), ROUTER_OPTIONS) as fleet:
            references = References(fleet)
            for at, (fault, num_delivered) in enumerate(_faults(num_kills, options.other_rounds)):
                result = await run_round(
                    fleet, references, KINDS[model], fault, num_streams=options.streams, num_delivered=num_delivered,
                    victim=at % NUM_REPLICAS,
                )  # fmt: skip
                _report(results, result)
            for name, scenario in SCENARIOS.items():
                found = await scenario(fleet, references, KINDS[model], options.streams)
                _report(results, RoundResult.of_scenario(model, name, found, options.streams))
    if Model.FAKE in models:
        limits = {"admission": {"max_waiting_requests": 1}}
        async with Fleet(Model.FAKE, options.into / "full", ROUTER_OPTIONS, first_replica=limits) as fleet:
            found = await fill_replica(fleet, References(fleet), KINDS[Model.FAKE], options.streams)
            _report(results, RoundResult.of_scenario(Model.FAKE, "a replica answers 429", found, options.streams))
    return results


def _faults(num_kills: int, num_others: int) -> list[tuple[Fault, int]]:
    kills = [(Fault.KILL, NUM_DELIVERED[at % len(NUM_DELIVERED)]) for at in range(num_kills)]
    others = [(fault, number) for fault in Fault if fault is not Fault.KILL for number in NUM_DELIVERED]
    return [*kills, *others * num_others]


def _report(results: list[RoundResult], result: RoundResult) -> None:
    results.append(result)
    _print(
        f"{result.model:15} {result.fault:22} after {result.num_delivered:3} tokens: "
        f"{sum(result.num_requests.values()):3} requests, {result.num_on_victim:2} on the replica, "
        f"{len(result.problems)} problems, {result.seconds:.1f} s"
    )
    for problem in result.problems[:5]:
        _print(f"    {problem[:500]}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
