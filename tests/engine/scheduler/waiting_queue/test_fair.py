"""FairQueue: the tenant with the least service is next."""

import random
from itertools import islice

import pytest

from chairlift.engine.scheduler.waiting_queue.fair import NEWCOMER_LAG, FairQueue
from chairlift.engine.sequence import Sequence
from support_engine import make_request, make_scheduler, run_step


def make_sequence(arrival: int, tenant: str, prompt: int = 10) -> Sequence:
    return Sequence(make_request(str(arrival), prompt, tenant=tenant), arrival, b"root", 0.0)


def queue_of(tenants: str, weights: dict[str, float] | None = None) -> tuple[FairQueue, list[Sequence]]:
    queue = FairQueue(weights or {})
    sequences = [make_sequence(arrival, tenant) for arrival, tenant in enumerate(tenants)]
    for sequence in sequences:
        queue.add(sequence)
    return queue, sequences


def tenants(queue: FairQueue) -> str:
    return "".join(sequence.request.tenant for sequence in queue)


def test_tenants_take_turns_however_many_requests_they_have() -> None:
    queue, _ = queue_of("aaaaaaab")
    assert tenants(queue)[:3] in {"aba", "baa"} and len(tenants(queue)) == len(queue) == 8


def test_within_a_tenant_it_is_order_of_arrival() -> None:
    queue, sequences = queue_of("abab")
    assert [each.arrival_index for each in queue if each.request.tenant == "a"] == [0, 2]
    queue.remove(sequences[0])
    queue.add(sequences[0])
    assert [each.arrival_index for each in queue if each.request.tenant == "a"] == [0, 2]


def test_who_was_served_less_is_next() -> None:
    queue, _ = queue_of("aabb")
    queue.record_service("a", 25)
    assert tenants(queue) == "bbab" or tenants(queue) == "bbaa"[:4]
    queue.record_service("b", 100)
    assert tenants(queue).startswith("aa")


def test_a_weight_is_a_share() -> None:
    queue, sequences = queue_of("a" * 40 + "b" * 40, {"a": 3.0})
    seen = ""
    for _ in range(40):
        first = next(iter(queue))
        seen += first.request.tenant
        queue.remove(first)
        queue.record_service(first.request.tenant, 10)
    assert 28 <= seen.count("a") <= 31 and sequences


def test_time_without_requests_is_not_saved_up() -> None:
    queue, sequences = queue_of("ab")
    queue.remove(sequences[1])
    for number in range(100):
        queue.record_service("a", 50)
        queue.add(make_sequence(100 + number, "a"))
        next(iter(queue))
    queue.add(make_sequence(900, "b"))
    assert queue.service("b") == queue.service("a") + NEWCOMER_LAG, "it starts where waiting tenants are"


def test_going_away_pays_no_debt() -> None:
    queue, sequences = queue_of("ab")
    queue.record_service("a", 1000)
    queue.remove(sequences[0])
    queue.add(make_sequence(7, "a"))
    assert queue.service("a") == 1000 and tenants(queue) == "ba"


def test_idle_tenants_are_forgotten_when_they_would_gain_nothing() -> None:
    queue = FairQueue({})
    queue.add(make_sequence(0, "busy"))
    for number in range(2000):
        one = make_sequence(1 + number, f"t{number}")
        queue.add(one)
        queue.record_service(f"t{number}", 5)
        queue.record_service("busy", 5)
        next(iter(queue))
        queue.remove(one)
    assert len(queue._service) < 200


def test_the_books_are_right_whatever_comes_and_goes() -> None:
    rng, queue = random.Random(2), FairQueue({"a": 2.0})
    inside: list[Sequence] = []
    for arrival in range(500):
        kind = rng.random()
        if kind < 0.4 or not inside:
            inside.append(make_sequence(arrival, rng.choice("abcd")))
            queue.add(inside[-1])
        elif kind < 0.7:
            queue.remove(inside.pop(rng.randrange(len(inside))))
        else:
            queue.record_service(rng.choice("abcde"), rng.randrange(1, 50))
        walked = list(queue)
        assert len(queue) == len(inside) == len(walked) and {id(each) for each in walked} == {id(e) for e in inside}
        if inside:
            least = min({each.request.tenant for each in inside}, key=queue.service)
            assert queue.service(walked[0].request.tenant) == queue.service(least)


def test_one_shot_tenants_are_dropped_though_no_other_waits() -> None:
    queue = FairQueue({})
    for number in range(2000):
        one = make_sequence(number, f"t{number}")
        queue.add(one)
        assert next(iter(queue)) is one
        queue.record_service(f"t{number}", 10)
        queue.remove(one)
        queue.record_service(f"t{number}", 1)
    assert len(queue._service) < 200 and len(queue._charged) < 200
    assert queue.service("t1999") == 2000 * 11, "each tenant started with the service of the last one that left"


def test_dropping_costs_little_also_when_no_tenant_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, forget = 0, FairQueue._forget_idle

    def counted(queue: FairQueue) -> None:
        nonlocal looked_at
        looked_at += len(queue._service)
        forget(queue)

    monkeypatch.setattr(FairQueue, "_forget_idle", counted)
    queue = FairQueue({})
    queue.add(make_sequence(0, "first"))
    for number in range(1, 4000):
        one = make_sequence(number, f"t{number}")
        queue.add(one)
        queue.record_service(f"t{number}", 10)
        queue.remove(one)
    assert len(queue._service) == 4000 and looked_at < 4 * 4000


def test_a_tenant_with_running_sequences_is_not_dropped() -> None:
    queue = FairQueue({})
    long = make_sequence(0, "long")
    queue.add(long)
    queue.remove(long)
    for number in range(1, 1000):
        one = make_sequence(number, f"t{number}")
        queue.add(one)
        queue.record_service(f"t{number}", 10)
        queue.remove(one)
        queue.record_service("long", 1)
    assert queue.service("long") == 999


def test_tenants_with_equal_service_go_by_their_oldest_request() -> None:
    for name in ("a", "zzzz"):
        queue = FairQueue({})
        queue.add(make_sequence(0, "m"))
        queue.add(make_sequence(1, name))
        queue.add(make_sequence(2, "n"))
        assert [each.request.tenant for each in queue] == ["m", name, "n"]
    queue = FairQueue({})
    for one in (make_sequence(0, "a", prompt=1), make_sequence(1, "b"), make_sequence(2, "a")):
        queue.add(one)
    assert tenants(queue) == "aba", "the second of a has the service of b then, and is younger"


def test_the_age_of_a_tenant_is_that_of_its_oldest_waiting_request() -> None:
    queue, sequences = queue_of("abab")
    queue.record_service("a", 1)
    assert next(iter(queue)) is sequences[0], "their service is equal, because a started one token lower"
    queue.remove(sequences[0])
    assert next(iter(queue)) is sequences[1], "the remaining request of a is younger"
    queue.add(sequences[0])
    assert next(iter(queue)) is sequences[0], "a victim returns with its age"


@pytest.mark.parametrize("name", ["a", "zzzz"])
@pytest.mark.parametrize("head_start", [0, 25])
def test_no_stream_of_new_tenants_starves_one_that_waits(name: str, head_start: int) -> None:
    queue, victim = FairQueue({}), make_sequence(10, name)
    for number in range(10):
        queue.add(make_sequence(number, f"s{number}"))
    queue.add(victim)
    queue.record_service(name, head_start)
    for number in range(11, 1000):
        queue.add(make_sequence(number, f"t{number:06d}"))
        first = next(iter(queue))
        if first is victim:
            break
        queue.record_service(first.request.tenant, 10)
        queue.remove(first)
    assert number <= 11 + 11 * (head_start + 1), (
        "at most the tenants that waited at its arrival, once for each token that it is ahead"
    )


def test_a_tenant_that_comes_while_slots_are_full_starts_where_waiting_ones_are() -> None:
    starts = []
    for looks in (False, True):
        scheduler = make_scheduler(scheduling_policy="fair", num_blocks=300, max_running_requests=1)
        queue = scheduler.waiting
        assert isinstance(queue, FairQueue)
        scheduler.add_request(make_request("a1", [501] * 4, 400, tenant="a"), 0.0)
        run_step(scheduler)
        scheduler.add_request(make_request("a2", [502] * 4, 4, tenant="a"), 0.0)
        for _ in range(100):
            run_step(scheduler)
            if looks:
                scheduler.check_integrity()
        scheduler.add_request(make_request("c1", [503] * 4, 4, tenant="c"), 0.0)
        assert queue.service("a") > 100 and queue.service("c") == queue.service("a") + NEWCOMER_LAG
        starts.append(queue.service("c"))
    assert starts[0] == starts[1]


def test_looking_changes_nothing() -> None:
    rng, seen, unseen = random.Random(5), FairQueue({"a": 2.0}), FairQueue({"a": 2.0})
    inside: list[Sequence] = []
    outside: list[Sequence] = []
    for arrival in range(3000):
        kind = rng.random()
        if kind < 0.3 or not inside:
            back = outside and rng.random() < 0.3
            one = (
                outside.pop(rng.randrange(len(outside)))
                if back
                else make_sequence(arrival, f"t{rng.randrange(arrival + 1)}")
            )
            inside.append(one)
            seen.add(one)
            unseen.add(one)
        elif kind < 0.6:
            one = inside.pop(rng.randrange(len(inside)))
            outside.append(one)
            seen.remove(one)
            unseen.remove(one)
        else:
            tenant = rng.choice(inside + outside).request.tenant
            seen.record_service(tenant, arrival % 7 + 1)
            unseen.record_service(tenant, arrival % 7 + 1)
        list(islice(seen, rng.randrange(4)))
        assert seen._service == unseen._service
    assert [each.arrival_index for each in seen] == [each.arrival_index for each in unseen]
    assert {each.arrival_index for each in seen} == {each.arrival_index for each in inside}


def test_a_walk_goes_on_while_those_that_came_out_are_charged() -> None:
    queue, _ = queue_of("abcabc")
    expected, walked = tenants(queue), ""
    for sequence in queue:
        walked += sequence.request.tenant
        queue.record_service(sequence.request.tenant, 1000)
    assert walked == expected == "abcabc"


@pytest.mark.parametrize("overlap", [False, True])
def test_the_scheduler_charges_started_prompts_and_delivered_tokens(overlap: bool) -> None:
    scheduler = make_scheduler(scheduling_policy="fair", overlap=overlap)
    queue = scheduler.waiting
    assert isinstance(queue, FairQueue)
    scheduler.add_request(make_request("a", [501] * 10, 4, tenant="a"), 0.0)
    for _ in range(4):
        run_step(scheduler)
    assert scheduler.is_idle and queue.service("a") == 14
    scheduler.add_request(make_request("again", [501] * 10, 1, tenant="a"), 0.0)
    run_step(scheduler)
    assert queue.service("a") == 14 + (10 - 8) + 1, "cached tokens are not charged"
