"""endpoint_merger.py: precedence, the last good list, empty lists; and random histories against a plain model."""

import random

import pytest

from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery import endpoint_merger
from chairlift.router.discovery.base import Snapshot, SourceState
from chairlift.router.discovery.endpoint_merger import EndpointMerger
from chairlift.router.endpoint import Endpoint
from support_discovery import urls


def snapshot(*names: str, weight: float = 1.0) -> Snapshot:
    return tuple(Endpoint.parse(name, weight=weight) for name in names)


def test_an_earlier_source_decides_over_a_url_and_the_order_is_that_of_urls() -> None:
    merger = EndpointMerger(["flags", "etcd"], 0.0)
    merger.update(1, snapshot("b", "a", weight=2), 0.0)
    assert not merger.is_complete
    merger.update(0, snapshot("c", "a"), 0.0)
    assert merger.is_complete
    assert [(each.url, each.weight) for each in merger.merged()] == [("http://a", 1), ("http://b", 2), ("http://c", 1)]
    merger.update(0, snapshot("c"), 0.0)
    assert [each.weight for each in merger.merged()] == [2, 2, 1]


def test_within_a_source_the_first_of_two_equal_urls_decides() -> None:
    merger = EndpointMerger(["file"], 0.0)
    merger.update(0, snapshot("a", weight=3) + snapshot("a", weight=4), 0.0)
    assert [each.weight for each in merger.merged()] == [3]


def test_a_source_that_fails_keeps_its_list() -> None:
    merger = EndpointMerger(["dns"], 5.0)
    assert merger.statuses()[0].state is SourceState.STARTING
    merger.update(0, snapshot("a"), 6.0)
    assert merger.fail(0, "down", 7.0)
    assert not merger.fail(0, "down", 8.0)
    assert merger.fail(0, "still down", 9.0)
    assert urls(merger.merged()) == ["http://a"]
    (status,) = merger.statuses()
    assert (status.state, status.since, status.last_error) == (SourceState.DOWN, 7.0, "still down")
    assert (status.num_endpoints, status.num_updates, status.num_failures) == (1, 1, 3)
    assert merger.update(0, snapshot("b"), 10.0) is SourceState.UP
    assert urls(merger.merged()) == ["http://b"] and merger.statuses()[0].since == 10.0


def test_an_empty_list_is_believed_after_the_grace_time_only() -> None:
    merger = EndpointMerger(["dns"], 0.0, empty_grace_seconds=60)
    assert merger.update(0, (), 0.0) is SourceState.UP  # nothing is lost
    merger.update(0, snapshot("a"), 1.0)
    assert merger.update(0, (), 10.0) is SourceState.EMPTY
    assert merger.next_tick == 70.0
    assert merger.update(0, (), 40.0) is SourceState.EMPTY  # a repeat does not begin again
    merger.tick(69.9)
    assert urls(merger.merged()) == ["http://a"] and merger.next_tick == 70.0
    merger.tick(70.0)
    assert merger.merged() == () and merger.next_tick is None
    assert merger.statuses()[0].state is SourceState.UP


def test_a_repeated_empty_list_is_believed_without_a_tick() -> None:
    merger = EndpointMerger(["dns"], 0.0, empty_grace_seconds=60)
    merger.update(0, snapshot("a"), 0.0)
    merger.update(0, (), 1.0)
    assert merger.update(0, (), 61.0) is SourceState.UP and merger.merged() == ()


def test_lists_within_the_grace_time_are_joined_with_what_is_missing_until_it_ends() -> None:
    """The replicas of a registry that lost its data register again one after the other."""
    merger = EndpointMerger(["etcd"], 0.0, empty_grace_seconds=60)
    merger.update(0, snapshot("a", "b", "c"), 0.0)
    merger.update(0, (), 1.0)
    assert merger.update(0, snapshot("b", "d", weight=2), 2.0) is SourceState.EMPTY
    assert [(each.url, each.weight) for each in merger.merged()] == [
        ("http://a", 1), ("http://b", 2), ("http://c", 1), ("http://d", 2),
    ]  # fmt: skip
    assert merger.statuses()[0].num_endpoints == 4 and merger.next_tick == 61.0
    merger.update(0, snapshot("a", "d"), 3.0)  # b was listed again: it leaves at once
    assert urls(merger.merged()) == ["http://a", "http://c", "http://d"]
    merger.tick(60.9)
    assert urls(merger.merged()) == ["http://a", "http://c", "http://d"]
    merger.tick(61.0)
    assert urls(merger.merged()) == ["http://a", "http://d"] and merger.statuses()[0].state is SourceState.UP


def test_the_grace_time_ends_when_all_are_listed_again() -> None:
    merger = EndpointMerger(["etcd"], 0.0, empty_grace_seconds=60)
    merger.update(0, snapshot("a", "b"), 0.0)
    merger.update(0, (), 1.0)
    assert merger.update(0, snapshot("a"), 2.0) is SourceState.EMPTY
    assert merger.update(0, snapshot("a", "b"), 3.0) is SourceState.UP
    assert merger.next_tick is None
    merger.update(0, snapshot("b"), 4.0)
    assert urls(merger.merged()) == ["http://b"]


def test_a_second_empty_list_begins_the_grace_time_of_those_listed_since_alone() -> None:
    merger = EndpointMerger(["etcd"], 0.0, empty_grace_seconds=60)
    merger.update(0, snapshot("a", "b"), 0.0)
    merger.update(0, (), 1.0)
    merger.update(0, snapshot("a"), 2.0)
    assert merger.update(0, (), 50.0) is SourceState.EMPTY
    assert urls(merger.merged()) == ["http://a", "http://b"]
    merger.tick(61.0)
    assert urls(merger.merged()) == ["http://a"] and merger.next_tick == 110.0
    merger.tick(110.0)
    assert merger.merged() == ()


def test_a_failure_within_the_grace_time_ends_it_and_the_next_answer_begins_it_again() -> None:
    merger = EndpointMerger(["dns"], 0.0, empty_grace_seconds=60)
    merger.update(0, snapshot("b"), 0.0)
    merger.update(0, (), 101.0)
    merger.fail(0, "down", 102.0)
    assert merger.next_tick is None
    merger.tick(1000.0)
    assert urls(merger.merged()) == ["http://b"]
    assert merger.update(0, snapshot("c"), 1001.0) is SourceState.EMPTY
    merger.tick(1060.0)
    assert urls(merger.merged()) == ["http://b", "http://c"]
    merger.tick(1061.0)
    assert urls(merger.merged()) == ["http://c"]


def test_no_grace_believes_at_once() -> None:
    merger = EndpointMerger(["dns"], 0.0, empty_grace_seconds=0)
    merger.update(0, snapshot("a"), 0.0)
    assert merger.update(0, (), 1.0) is SourceState.UP and merger.merged() == ()


def test_a_list_that_is_too_long_is_refused_and_the_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_merger, "MAX_ENDPOINTS", 2)
    merger = EndpointMerger(["dns"], 0.0)
    merger.update(0, snapshot("a", "b"), 0.0)
    with pytest.raises(DiscoveryFailed, match="the list has 3 replicas, the limit is 2"):
        merger.update(0, snapshot("a", "b", "c"), 1.0)
    assert len(merger.merged()) == 2


@pytest.mark.share(16)
@pytest.mark.parametrize("seed", range(40))
def test_random_histories_keep_what_an_empty_list_removed_until_it_is_believed(seed: int) -> None:
    """The model: of each source its last list, and what empty lists removed less than the whole grace time ago."""
    rng, now, grace = random.Random(seed), 0.0, 10.0
    merger = EndpointMerger(["a", "b"], now, empty_grace_seconds=grace)
    lists: list[set[str]] = [set(), set()]
    held: list[dict[str, float]] = [{}, {}]
    is_down = [False, False]
    for _ in range(200):
        now += rng.choice((0.0, 1.0, 4.0))
        index, action = rng.randrange(2), rng.choice(("list", "list", "empty", "empty", "empty", "fail", "tick"))
        if action == "fail":
            merger.fail(index, "down", now)
            is_down[index] = True
        elif action in ("list", "empty"):
            if is_down[index]:
                held[index] = dict.fromkeys(held[index], now + grace)
            is_down[index] = False
            names = set(rng.sample("pqrst", rng.randint(1, 3))) if action == "list" else set()
            if not names:
                held[index] |= dict.fromkeys(lists[index], now + grace)
            lists[index] = names
            merger.update(index, snapshot(*names, weight=index + 1), now)
        merger.tick(now)
        for each in range(2):
            held[each] = {
                name: until for name, until in held[each].items()
                if name not in lists[each] and (is_down[each] or now < until)
            }  # fmt: skip
        expected = {f"http://{name}": each + 1 for each in (1, 0) for name in {*lists[each], *held[each]}}
        assert {each.url: each.weight for each in merger.merged()} == expected
        assert [each.state is SourceState.EMPTY for each in merger.statuses()] == [
            bool(held[each]) and not is_down[each] for each in range(2)
        ]
