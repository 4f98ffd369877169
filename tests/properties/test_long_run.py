"""A million steps of random engines (a share of them in `make test`), checked on the way; one seed gives one run."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.engine.engine_counters import Counters
from support_engine import EngineHarness
from support_requests import run_random_engine
from support_shares import FULL

SHARDS = 4 if FULL else 2
MIN_STEPS = 250_000 if FULL else 5_000
"""Launched steps of one shard at least, over several engines with about TURNS iterations each."""
STEPS_PER_ENGINE = 250


pytestmark = pytest.mark.usefixtures("without_warnings")


@pytest.mark.share(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_long_run_of_many_engines_keeps_every_promise(shard: int) -> None:
    all_counters: list[Counters] = []
    while sum(counters.steps for counters in all_counters) < MIN_STEPS:
        all_counters.append(
            run_random_engine(shard * 1_000_000 + len(all_counters), STEPS_PER_ENGINE).scheduler.counters
        )
    assert max(counters.max_in_flight for counters in all_counters) == 2
    for counter in ("preemptions", "cached_tokens", "failed_steps", "output_tokens"):
        assert sum(getattr(counters, counter) for counters in all_counters) > 0, f"no {counter} in the whole shard"
    ends = {reason for counters in all_counters for reason, count in counters.finished_by_reason.items() if count}
    assert ends == {"stop", "length", "abort", "error"}


def fingerprint(harness: EngineHarness) -> str:
    """Hash every plan and every final output of a run."""
    text = repr((harness.audit.plans, sorted(harness.tokens.items()), sorted(map(repr, harness.finals.values()))))
    return hashlib.sha256(text.encode()).hexdigest()


SEEDS = range(40, 46 if FULL else 42)


@pytest.mark.full
def test_one_seed_replays_a_whole_run() -> None:
    """The plans are equal, also in another process, where strings have other hashes."""
    digests = [fingerprint(run_random_engine(seed, 100, keep_plans=True)) for seed in SEEDS]
    assert digests == [fingerprint(run_random_engine(seed, 100, keep_plans=True)) for seed in SEEDS]
    assert len(set(digests)) == len(SEEDS)
    script = (
        "import importlib.util, sys, logging; logging.disable(logging.WARNING);"
        "spec = importlib.util.spec_from_file_location('long_run', sys.argv[1]);"
        "m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m);"
        "print(*(m.fingerprint(m.run_random_engine(seed, 100, keep_plans=True)) for seed in m.SEEDS))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "17", "PYTHONPATH": str(Path(__file__).parents[1])}
    other = subprocess.run(
        [sys.executable, "-c", script, __file__], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.split() == digests
