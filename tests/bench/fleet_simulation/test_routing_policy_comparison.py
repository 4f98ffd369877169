"""compare_policies, policy_table: each policy serves the same conversations and has a line in the table."""

from dataclasses import replace

import pytest

from chairlift.bench.fleet_simulation import routing_policy_comparison
from chairlift.bench.fleet_simulation.load.conversations import SHARED
from chairlift.bench.fleet_simulation.routing_policy_comparison import CACHING_MACHINE, compare_policies, policy_table


def test_each_policy_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(routing_policy_comparison.CONVERSATION_LOADS, "shared", replace(SHARED, sessions=4))
    machine = replace(CACHING_MACHINE, enable_prefix_caching=False)
    content = compare_policies("shared", ("prefix", "random"), 2, machine)
    assert [arm["policy"] for arm in content["arms"]] == ["prefix", "random"]
    assert {arm["requests"] for arm in content["arms"]} == {4 * SHARED.turns}
    assert min(arm["prefix_hit_rate"] for arm in content["arms"]) > 0
    lines = list(policy_table(content))
    assert "2 replicas; later prompts repeat 0.6 times" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["prefix", "random"]
