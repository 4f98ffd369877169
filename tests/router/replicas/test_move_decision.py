"""choose_moves: how many waiting requests move to new replicas, which ones, and never more than is fair."""

from random import Random

from chairlift.router.replicas.move_decision import MIN_WAIT_SECONDS, ReplicaQueue, choose_moves, spread_evenly
from support_shares import for_each

Waiting = dict[str, list[str]]


def queue(replica_id: str, num_open: int = 0, waiting: int = 0, **fields: float) -> ReplicaQueue:
    values = {"expected_wait_seconds": 9.0 if num_open else 0.0} | fields
    return ReplicaQueue(replica_id=replica_id, open_requests=num_open, waiting_requests=waiting, **values)  # type: ignore[arg-type]


def names(replica_id: str, count: int) -> list[str]:
    return [f"{replica_id}{number}" for number in range(count)]


def choose(ready: list[ReplicaQueue], busy: list[ReplicaQueue], waiting: Waiting) -> list[tuple[str, str]]:
    return choose_moves([*busy, *ready], {each.replica_id for each in ready}, waiting)


@for_each(("ready", "busy", "own", "expected"), [
    # one busy replica runs 4 and 12 wait: 8 stay there, 8 move
    ([queue("n", free_places=64)], [queue("a", 16, 12)], {"a": 12}, {"n": 8}),
    # a new one of twice the weight takes two thirds
    ([queue("n", free_places=64, weight=2.0)], [queue("a", 18, 14)], {"a": 14}, {"n": 12}),
    # the oldest stays, also where all could run at once
    ([queue("n", free_places=64)], [queue("a", 20, 4)], {"a": 4}, {"n": 3}),
    # half of the places of a small one, and none of a full one
    ([queue("n", free_places=5)], [queue("a", 42, 10)], {"a": 10}, {"n": 3}),
    ([queue("n", free_places=1)], [queue("a", 42, 10)], {"a": 10}, {"n": 1}),
    ([queue("n", free_places=0)], [queue("a", 42, 10)], {"a": 10}, {}),
    # an unknown number of places
    ([queue("n")], [queue("a", 16, 12)], {"a": 12}, {"n": 8}),
    # two that become ready together share it
    ([queue("m", free_places=64), queue("n", free_places=64)], [queue("a", 30, 26)], {"a": 26}, {"m": 10, "n": 10}),
    ([queue("m", free_places=8), queue("n", free_places=64)], [queue("a", 30, 26)], {"a": 26}, {"m": 4, "n": 13}),
    # of two busy ones the longer queue gives more
    ([queue("n", free_places=64)], [queue("a", 20, 12), queue("b", 14, 6)], {"a": 12, "b": 6}, {"n": 11}),
    # of the requests of other routers there this one moves none: its own share is a third
    ([queue("n", free_places=64)], [queue("a", 16, 12)], {"a": 4}, {"n": 2}),
    # nothing waits long enough
    ([queue("n", free_places=64)], [queue("a", 16, 12, expected_wait_seconds=MIN_WAIT_SECONDS)], {"a": 12}, {}),
    # a new one where requests wait long gets none, and gives some
    ([queue("m", 16, 12), queue("n", free_places=64)], [], {"m": 12}, {"n": 8}),
    # it would wait as long there
    ([queue("n", free_places=64, expected_wait_seconds=8.5)], [queue("a", 16, 12)], {"a": 12}, {}),
    # one that waits alone starts next
    ([queue("n", free_places=64)], [queue("a", 5, 1)], {"a": 1}, {}),
    # the new one has as much to do already: other routers were faster
    ([queue("n", 16, free_places=0, expected_wait_seconds=0.0)], [queue("a", 16, 12)], {"a": 12}, {}),
    ([], [queue("a", 16, 12)], {"a": 12}, {}),
    ([queue("n", free_places=64)], [], {}, {}),
])  # fmt: skip
def test_table(
    ready: list[ReplicaQueue], busy: list[ReplicaQueue], own: dict[str, int], expected: dict[str, int]
) -> None:
    moves = choose(ready, busy, {name: names(name, count) for name, count in own.items()})
    counts: dict[str, int] = {}
    for _, replica_id in moves:
        counts[replica_id] = counts.get(replica_id, 0) + 1
    assert counts == expected


def test_every_kth_of_all_ages_moves_and_the_oldest_go_first() -> None:
    moves = choose([queue("n", free_places=64)], [queue("a", 16, 12)], {"a": names("a", 12)})
    assert [request for request, _ in moves] == ["a1", "a3", "a4", "a5", "a7", "a8", "a9", "a11"]
    assert spread_evenly(names("a", 9), 3) == [(1, "a1"), (4, "a4"), (7, "a7")]
    assert spread_evenly(names("a", 2), 5) == [(0, "a0"), (1, "a1")]
    assert spread_evenly(names("a", 2), 0) == []


def test_new_replicas_get_every_age() -> None:
    ready = [queue("m", free_places=64), queue("n", free_places=64)]
    moves = choose(ready, [queue("a", 30, 26)], {"a": names("a", 26)})
    assert [replica_id for _, replica_id in moves[:6]] == ["m", "n", "m", "n", "m", "n"]


def random_case(rng: Random) -> tuple[list[ReplicaQueue], list[ReplicaQueue], Waiting]:
    ready = [
        queue(f"n{number}", weight=rng.choice((0.5, 1.0, 3.0)), free_places=rng.choice((None, rng.randint(0, 20))))
        for number in range(rng.randint(1, 4))
    ]
    busy, waiting = [], {}
    for number in range(rng.randint(0, 5)):
        name, running, count = f"b{number}", rng.randint(0, 16), rng.choice((0, rng.randint(0, 200)))
        waiting[name] = names(name, rng.choice((count, count // 2)))
        busy.append(queue(
            name, running + count, count, weight=rng.choice((0.5, 1.0, 3.0)),
            expected_wait_seconds=rng.choice((0.0, 0.9, 1.5, 30.0)),
        ))  # fmt: skip
    return ready, busy, waiting


def test_over_random_pools_the_spread_is_fair_and_bounded() -> None:
    num_moves = 0
    for seed in range(500):
        ready, busy, waiting = random_case(Random(f"moves {seed}"))
        moves = choose(ready, busy, waiting)
        num_moves += len(moves)
        moved = [request for request, _ in moves]
        assert len(set(moved)) == len(moved), "a request moves twice at once"
        source_of = {request: name for name, requests in waiting.items() for request in requests}
        taken = {each.replica_id: 0 for each in ready}
        for _, replica_id in moves:
            taken[replica_id] += 1
        given = {each.replica_id: sum(source_of[request] == each.replica_id for request in moved) for each in busy}
        long = [each for each in busy if each.expected_wait_seconds > MIN_WAIT_SECONDS]
        assert sum(given[each.replica_id] for each in long) == len(moves), "one moves that does not wait long"
        for each in ready:  # no more than half of its places, and no fuller than the replicas that they come from
            assert each.free_places is None or taken[each.replica_id] <= each.free_places / 2 + 1
            for source in long:
                if given[source.replica_id]:
                    load_there = (source.open_requests - given[source.replica_id]) / source.weight
                    load_here = (each.open_requests + taken[each.replica_id]) / each.weight
                    assert load_here <= load_there + 1 / each.weight + 1 / source.weight
            for requests in waiting.values():
                assert not requests or requests[0] not in moved, "the oldest moves"
    assert num_moves > 5000
