"""Random schedules of models whose layers keep a state: no row continues the state of other tokens.

The fake runner's tokens depend on the state, and it checks each row's state against the tokens before it. The engines
have preemptions, aborts, several choices, prefix hits, steps that fail, two steps in flight, windows, and pools of
checkpoints from none to many.
"""

from collections import Counter

import pytest

from support_requests import run_random_engine
from support_shares import FULL

SHARDS = 4 if FULL else 2
SCHEDULES = 300 if FULL else 25
"""Random engines of a shard."""


pytestmark = pytest.mark.usefixtures("without_warnings")


@pytest.mark.share(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_schedules_of_models_with_a_state_keep_every_promise(shard: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(shard * SCHEDULES, (shard + 1) * SCHEDULES):
        harness = run_random_engine(7_000_000 + seed, 60, has_state=True)
        counters, pool = harness.scheduler.counters, harness.cache.checkpoints
        assert pool.counts().held == 0
        totals.update(
            preemptions=counters.preemptions, cached_tokens=counters.cached_tokens, failed=counters.failed_steps,
            hits=pool.num_hits, saves=pool.num_saves, skipped=pool.num_skipped_saves, evictions=pool.num_evictions,
            overlap=counters.max_in_flight == 2, aborts=counters.finished_by_reason["abort"],
            windows=len(harness.fake.windows) > 1, all_layers=not harness.fake.windows,
        )  # fmt: skip
    assert not [name for name, count in totals.items() if not count], "something did not happen in the whole shard"
