"""Run load on a real fleet: `python -m fleet_load --phases 30:2 60:16 --output FILE.json -- --max-replicas 4`.

The words behind `--` are options of `chairlift fleet`. Every response is compared with an undisturbed one. The exit
code is 0 if all are complete and equal.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from chairlift.bench.report.environment import environment, source
from fleet_load.fleet_process import FleetProcess
from fleet_load.open_loop_client import Client, Phase
from fleet_load.plot import plot
from fleet_load.summary import by_second, dump, summary

SAMPLE_SECONDS = 0.5


def main(words: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fleet_load", description=__doc__)
    parser.add_argument("--phases", nargs="+", type=Phase.parse, required=True, metavar="SECONDS:RATE")
    parser.add_argument("--max-tokens", type=int, default=64, help="output tokens of each request")
    parser.add_argument("--kill-every", type=float, default=0.0, help="kill a replica after each of these seconds")
    parser.add_argument("--slo-ttft", type=float, default=1.0, help="SLO of the time to the first token in seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON file; a plot is written beside it")
    parser.add_argument("fleet", nargs="*", metavar="WORD", help="options of `chairlift fleet`")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(_run(options, Path(folder)))
    figures = result["summary"]
    for name, value in figures.items():
        sys.stdout.write(f"{name:28} {value}\n")
    if options.output is not None:
        plot(result, options.output.with_suffix(".png"))
        result["seconds"] = by_second(result.pop("responses"))
        options.output.write_text(dump(result))
    return 0 if figures["failed"] == 0 else 1


async def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    before = source()
    fleet = FleetProcess(folder, options.fleet)
    await fleet.start()
    series: list[dict[str, Any]] = []
    kills: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(session, fleet.url, options.max_tokens)
        await client.learn_references()
        started_at = time.monotonic()
        watching = asyncio.create_task(_watch(fleet, session, series, started_at))
        killing = asyncio.create_task(_kill(fleet, options.kill_every, kills, started_at))
        responses = await client.run(options.phases, options.seed, started_at)
        for task in (watching, killing):
            task.cancel()
        decisions = (await fleet.status(session))["autoscaler"]["decisions_with_change"]
    stop_seconds = await fleet.stop()
    return {
        "kind": "chairlift fleet load", "schema": 1, "fleet": options.fleet, "max_tokens": options.max_tokens,
        "phases": [[each.seconds, each.rate] for each in options.phases], "seed": options.seed, "kills": kills,
        "summary": summary(responses, series, options.phases, options.slo_ttft, stop_seconds),
        "series": series, "decisions": decisions,
        "environment": environment(before), "responses": responses,
    }  # fmt: skip


async def _watch(
    fleet: FleetProcess, session: aiohttp.ClientSession, series: list[dict[str, Any]], started_at: float
) -> None:
    while True:
        status = await fleet.status(session)
        states = [each["state"] for each in status["replicas"]]
        series.append({
            "at": time.monotonic() - started_at, "target": status["target"],
            **{state: states.count(state) for state in ("starting", "ready", "draining")},
        })  # fmt: skip
        await asyncio.sleep(SAMPLE_SECONDS)


async def _kill(fleet: FleetProcess, seconds: float, kills: list[float], started_at: float) -> None:
    while seconds:
        await asyncio.sleep(seconds)
        if fleet.kill_replica(len(kills)) is not None:
            kills.append(time.monotonic() - started_at)


if __name__ == "__main__":
    sys.exit(main())
