"""PrefixIndex: matches as a plain model does, bounds of memory, restarts, and what a match costs."""

import tracemalloc
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import integers, sampled_from, text

from chairlift.router.prefix_index import ENTRY_BYTES, PrefixIndex


def chain(name: str, length: int) -> tuple[bytes, ...]:
    """Return the hashes of a prompt's beginnings; chains of names with a common beginning share hashes."""
    return tuple(name[: end + 1].ljust(end + 1, "-").encode() for end in range(length))


def index_of(num_entries: int, hash_bytes: int = 1) -> PrefixIndex:
    return PrefixIndex(max_bytes_per_replica=num_entries * (ENTRY_BYTES + hash_bytes))


def test_each_replica_matches_as_far_as_it_computed() -> None:
    index, now = PrefixIndex(), dict.fromkeys("abcd", "1")
    index.record("a", "1", chain("abcdef", 6))
    index.record("b", "1", chain("abcd", 4))
    index.record("c", "1", chain("xyz", 3))
    assert index.match(chain("abcdefgh", 8), now) == {"a": 6, "b": 4}
    assert index.match(chain("abcx", 4), now) == {"a": 3, "b": 3}
    assert index.match(chain("x", 1), now) == {"c": 1}
    assert index.match(chain("q", 1), now) == index.match((), now) == {}


def test_only_the_replicas_in_question_match() -> None:
    index = PrefixIndex()
    for name in "abc":
        index.record(name, "1", chain("abc", 3))
    assert index.match(chain("abc", 3), {"a": "1", "c": "1", "new": "1"}) == {"a": 3, "c": 3}
    assert index.match(chain("abc", 3), {}) == {}


def test_a_replica_that_restarts_has_nothing_until_it_computes_again() -> None:
    index = PrefixIndex()
    index.record("a", "1", chain("abc", 3))
    assert index.match(chain("abc", 3), {"a": "2"}) == {}
    index.record("a", "2", chain("x", 1))
    assert index.match(chain("abc", 3), {"a": "2"}) == {}
    assert index.match(chain("x", 1), {"a": "2"}) == {"a": 1}
    index.check_integrity()


def test_a_late_answer_of_the_process_before_changes_nothing() -> None:
    index = PrefixIndex()
    index.record("a", "1", chain("abc", 3))
    index.record("a", "2", chain("xyz", 3))
    index.record("a", "1", chain("abcd", 4))
    assert index.match(chain("xyz", 3), {"a": "2"}) == {"a": 3}
    assert index.match(chain("abcd", 4), {"a": "1"}) == {}
    index.record("a", "3", chain("q", 1))
    assert index.match(chain("q", 1), {"a": "3"}) == {"a": 1}


def test_a_forgotten_replica_matches_nothing_and_frees_its_memory() -> None:
    index, now = PrefixIndex(), {"a": "1", "b": "1"}
    index.record("a", "1", chain("abc", 3))
    index.record("b", "1", chain("ab", 2))
    index.forget("a")
    index.forget("unknown")
    assert index.match(chain("abc", 3), now) == {"b": 2}
    assert index.num_bytes == sum(ENTRY_BYTES + len(each) for each in chain("ab", 2))
    index.check_integrity()


def test_replicas_that_are_not_retained_are_forgotten() -> None:
    index = PrefixIndex()
    for name in "abc":
        index.record(name, "1", chain("abc", 3))
    index.retain(["b", "z"])
    assert index.match(chain("abc", 3), dict.fromkeys("abc", "1")) == {"b": 3}


def test_the_least_recently_used_prefix_is_dropped_from_its_end() -> None:
    index, now = index_of(5, 1), {"a": "1"}
    old, new = [b"1", b"2", b"3"], [b"x", b"y", b"z"]
    index.record("a", "1", old)
    index.record("a", "1", new)
    assert (index.match(old, now), index.match(new, now)) == ({"a": 2}, {"a": 3})
    index.record("a", "1", old[:1])
    index.record("a", "1", [b"p", b"q"])
    assert (index.match(old, now), index.match(new, now)) == ({"a": 1}, {"a": 2})
    index.check_integrity()


def test_a_prompt_larger_than_the_bound_keeps_its_beginning() -> None:
    index, prompt = index_of(10), [bytes([number]) for number in range(200)]
    index.record("a", "1", prompt)
    assert index.match(prompt, {"a": "1"}) == {"a": 10}


def test_one_replica_that_records_much_takes_nothing_from_another() -> None:
    index = index_of(10)
    index.record("a", "1", [b"1", b"2"])
    for number in range(250):
        index.record("b", "1", [bytes([number])])
    assert index.match([b"1", b"2"], {"a": "1", "b": "1"}) == {"a": 2}


class IndexModel(RuleBasedStateMachine):
    """Compares the index, without its bound, with plain sets of hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.known: dict[tuple[str, str], set[bytes]] = {}
        self.current: dict[str, str] = {}

    @rule(replica=sampled_from("abc"), name=text("xy", min_size=6, max_size=6), length=integers(0, 6))
    def record(self, replica: str, name: str, length: int) -> None:
        incarnation = self.current.setdefault(replica, "0")
        self.index.record(replica, incarnation, chain(name, length))
        self.known.setdefault((replica, incarnation), set()).update(chain(name, length))

    @rule(replica=sampled_from("abc"))
    def restart(self, replica: str) -> None:
        self.current[replica] = str(int(self.current.get(replica, "0")) + 1)

    @rule(replica=sampled_from("abc"))
    def forget(self, replica: str) -> None:
        self.index.forget(replica)
        self.known.pop((replica, self.current.get(replica, "0")), None)

    @rule(name=text("xy", min_size=6, max_size=6))
    def match(self, name: str) -> None:
        expected = {}
        for replica, incarnation in self.current.items():
            known = self.known.get((replica, incarnation), set())
            length = next((end for end, each in enumerate(chain(name, 6)) if each not in known), 6)
            if length:
                expected[replica] = length
        assert self.index.match(chain(name, 6), self.current) == expected

    @invariant()
    def both_directions_agree(self) -> None:
        self.index.check_integrity()


IndexModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestIndexModel = IndexModel.TestCase


@pytest.mark.parametrize("seed", range(3))
def test_bounds_and_links_hold_in_long_random_histories(seed: int) -> None:
    """Whatever is dropped, a replica that has a hash also has the hashes before it, as matching assumes."""
    rng, index = Random(seed), index_of(40, 8)
    for step in range(1500):
        name = "".join(rng.choices("xyz", k=8))
        replica = rng.choice("abcdef")
        if rng.random() < 0.02:
            index.forget(replica)
        index.record(replica, str(step // 500), chain(name, rng.randrange(9)))
        if step % 50 == 0:
            index.check_integrity()
            for held in index._replicas.values():
                assert all(len(each) == 1 or each[:-1] in held.hashes for each in held.hashes)


class CountedHash(bytes):
    """A hash that counts how often a dict or set looks at it."""

    lookups = 0

    def __hash__(self) -> int:
        CountedHash.lookups += 1
        return super().__hash__()


class OnlyLookups(dict[str, str]):
    """Incarnations of replicas, which must not be iterated over."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a match looks at every replica")

    items = keys = values = __iter__  # type: ignore[assignment]


def test_a_match_costs_as_much_as_it_finds() -> None:
    index = PrefixIndex()
    for number in range(300):
        index.record(f"r{number}", "1", chain(f"{number:04}", 40))
    index.record("r7", "1", chain("abc", 3))
    asked, now = [CountedHash(each) for each in chain("abc", 90)], OnlyLookups({f"r{n}": "1" for n in range(300)})
    CountedHash.lookups = 0
    assert index.match(asked, now) == {"r7": 3}
    assert CountedHash.lookups == 4


@pytest.mark.parametrize("num_holders", [1, 3])
def test_memory_stays_within_the_bound(num_holders: int) -> None:
    """The worst case for sets of holders: each hash is recorded on its own by several replicas."""
    limit, rng = 400_000, Random(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = PrefixIndex(max_bytes_per_replica=limit)
        for _ in range(3000):
            each = (rng.randbytes(32),)
            for number in range(num_holders):
                index.record(f"r{number}", "1", each)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.9 * num_holders * limit < index.num_bytes <= num_holders * limit
    assert used <= 1.05 * num_holders * limit
