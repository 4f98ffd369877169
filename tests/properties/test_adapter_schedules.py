"""Random schedules with LoRA adapters: no output has tokens of another version, and no block of one is read.

The fake runner's tokens, keys, values and states depend on the digest of the adapter's files. Versions are replaced
under their names and dropped while requests run, are preempted, fail, have drafts and share prefixes.
"""

from collections import Counter
from dataclasses import replace

import pytest

from chairlift.core.adapter_version import AdapterVersion
from chairlift.core.block_hash import root_hash
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler import scheduler as scheduler_module
from support_adapter_versions import AdapterVersions
from support_engine import EngineHarness, make_request
from support_requests import run_random_engine
from support_shares import FULL

SHARDS = 4 if FULL else 1
SCHEDULES = 250 if FULL else 25
"""Random engines of a shard, with and without states."""

FAKE = FakeConfig(vocab_size=200, num_blocks=64, block_size=4)


pytestmark = pytest.mark.usefixtures("without_warnings")


@pytest.mark.share(1)
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_schedules_never_mix_versions(shard: int, has_state: bool) -> None:
    totals: Counter[str] = Counter()
    for number in range(SCHEDULES):
        harness = run_random_engine(9_000_000 + 100_000 * shard + number, 60, has_state=has_state, totals=totals)
        counters = harness.scheduler.counters
        totals.update(
            preemptions=counters.preemptions, cached_tokens=counters.cached_tokens, failed=counters.failed_steps,
            drafts=counters.confirmed_draft_tokens, aborts=counters.finished_by_reason["abort"],
            overlap=counters.max_in_flight == 2,
        )  # fmt: skip
    assert not [name for name, count in totals.items() if not count], "something did not happen in the whole shard"
    assert totals["reloads"] > SCHEDULES


def _reload_between_equal_prompts() -> EngineHarness:
    """Run a prompt, replace the files of its adapter, run the prompt again; returns the engine."""
    harness = EngineHarness(FAKE)
    versions = AdapterVersions(harness)
    harness.submit(make_request("old", 16, 6, adapter=versions.version("a")))
    harness.drain()
    versions.reload("a", 1)
    harness.submit(make_request("new", 16, 6, adapter=versions.version("a")))
    harness.drain()
    return harness


def test_a_new_version_reads_no_block_of_an_older_one() -> None:
    harness = _reload_between_equal_prompts()
    assert harness.tokens["old"] != harness.tokens["new"]
    usage = harness.finals["new"].usage
    assert usage is not None and usage.cached_tokens == 0
    harness.check_outputs(no_faults=True)


def test_with_names_in_the_hashes_a_new_version_reads_stale_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the suite itself: it finds the fault of a server whose hashes have the adapter's name."""

    def by_name(model: str, digest: str, tenant: str, salt: str = "") -> bytes:
        return root_hash(model, "a" if digest else "", tenant, salt)

    monkeypatch.setattr(scheduler_module, "root_hash", by_name)
    with pytest.raises(AssertionError, match="instead of"):
        _reload_between_equal_prompts()


def test_a_version_with_equal_files_shares_the_blocks_of_the_earlier_one() -> None:
    harness = EngineHarness(FAKE)
    versions = AdapterVersions(harness)
    harness.submit(make_request("old", 16, 6, adapter=versions.version("a")))
    harness.drain()
    versions.reload("a", 0)
    versions.drop_unused()
    request = make_request("new", 16, 6, adapter=versions.version("a"))
    harness.submit(request)
    harness.drain()
    usage = harness.finals["new"].usage
    assert usage is not None and usage.cached_tokens == 12 and harness.tokens["old"] == harness.tokens["new"]
    assert harness.runner.adapters.numbers == [request.adapter.number] and request.adapter.number > 1


def test_base_and_adapters_run_in_one_step_each_with_its_own_tokens() -> None:
    harness = EngineHarness(FAKE)
    versions = AdapterVersions(harness)
    for name in ("", "a", "b"):
        harness.submit(make_request(name or "base", 9, 5, adapter=versions.version(name)))
    harness.step()
    assert len(harness.scheduler.running) == 3
    harness.drain()
    harness.check_outputs(no_faults=True)
    assert len({tuple(tokens) for tokens in harness.tokens.values()}) == 3


def test_a_row_of_a_dropped_version_breaks_the_runners_contract() -> None:
    harness = EngineHarness(FAKE)
    version = AdapterVersion(1, "digest")
    harness.runner.adapters.add(1, "digest")
    harness.submit(replace(make_request("r", 9, 5), adapter=version))
    harness.step()
    harness.loop.drop_adapter(1)
    harness.step()
    assert "not loaded" in str(harness.runner.contract_errors[0])
    harness.close()
