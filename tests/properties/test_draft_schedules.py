"""Random schedules with drafts: no output, no block and no state depends on what a drafter proposes.

The fake runner writes the keys and values of rejected drafts, so a step that read them would give a wrong token. The
engines have preemptions, aborts, several choices, prefix hits, steps that fail, two steps in flight, windows, layers
that keep a state, and drafters that are always right, sometimes wrong and always wrong.
"""

from collections import Counter

import pytest

from support_requests import run_random_engine
from support_shares import FULL

SHARDS = 4 if FULL else 2
SCHEDULES = 300 if FULL else 20
"""Random engines of a shard."""


pytestmark = pytest.mark.usefixtures("without_warnings")


@pytest.mark.share(1)
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_schedules_with_drafts_keep_every_promise(shard: int, has_state: bool) -> None:
    totals: Counter[str] = Counter()
    number = 0
    while totals["engines"] < SCHEDULES:
        number += 1
        harness = run_random_engine(8_000_000 + 100_000 * shard + number, 60, has_state=has_state)
        if harness.drafter is None and harness.draft_model is None:
            continue
        counters = harness.scheduler.counters
        totals.update(
            engines=1, draft_models=harness.draft_model is not None, drafts=counters.draft_tokens,
            confirmed=counters.confirmed_draft_tokens,
            rejected=counters.draft_tokens - counters.confirmed_draft_tokens, preemptions=counters.preemptions,
            cached_tokens=counters.cached_tokens, failed=counters.failed_steps,
            aborts=counters.finished_by_reason["abort"], windows=len(harness.fake.windows) > 1,
            overlap=counters.draft_tokens > 0 and counters.max_in_flight == 2,
        )  # fmt: skip
    assert not [name for name, count in totals.items() if not count], "something did not happen in the whole shard"
