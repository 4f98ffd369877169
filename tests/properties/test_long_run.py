"""A million steps of made-up engines (a share of them in `make test`), proved on the way; and one seed, one run."""

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.engine.stats import Counters
from support_engine import FULL, Lift
from support_requests import ride

SHARDS = 4
STEPS = (1_000_000 if FULL else 20_000) // SHARDS
"""Launched steps of one shard at least: engine after engine, each for about TURNS turns of the wheel."""
TURNS = 250


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Failed steps are drawn on purpose; each would write a warning."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_long_run_of_many_engines_keeps_every_promise(shard: int) -> None:
    lifts: list[Counters] = []
    while sum(counters.steps for counters in lifts) < STEPS:
        lifts.append(ride(shard * 1_000_000 + len(lifts), TURNS).scheduler.counters)
    assert max(counters.max_in_flight for counters in lifts) == 2
    for what in ("preemptions", "cached_tokens", "failed_steps", "output_tokens"):
        assert sum(getattr(counters, what) for counters in lifts) > 0, f"no {what} in the whole shard"
    ends = {reason for counters in lifts for reason, count in counters.finished_by_reason.items() if count}
    assert ends == {"stop", "length", "abort", "error"}


def fingerprint(lift: Lift) -> str:
    """Hash every plan and every last Output of a ride."""
    said = repr((lift.audit.plans, sorted(lift.tokens.items()), sorted(map(repr, lift.finals.values()))))
    return hashlib.sha256(said.encode()).hexdigest()


SEEDS = range(40, 46)


def test_one_seed_replays_a_whole_run() -> None:
    """Plan for plan, in other processes too, where sets and dicts of strings are hashed otherwise."""
    here = [fingerprint(ride(seed, 100, keep_plans=True)) for seed in SEEDS]
    assert here == [fingerprint(ride(seed, 100, keep_plans=True)) for seed in SEEDS]
    assert len(set(here)) == len(SEEDS)
    script = (
        "import importlib.util, sys, logging; logging.disable(logging.WARNING);"
        "spec = importlib.util.spec_from_file_location('long_run', sys.argv[1]);"
        "m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m);"
        "print(*(m.fingerprint(m.ride(seed, 100, keep_plans=True)) for seed in m.SEEDS))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "17", "PYTHONPATH": str(Path(__file__).parents[1])}
    there = subprocess.run(
        [sys.executable, "-c", script, __file__], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.split() == here
