"""The fair line: tenants take turns by what they were served."""

import random
from itertools import islice

import pytest

from chairlift.engine.scheduler.waiting_queue.fair import NEWCOMER_LAG, FairQueue
from chairlift.engine.sequence import Sequence
from support_engine import ask, make_scheduler, turn


def someone(arrival: int, tenant: str, prompt: int = 10) -> Sequence:
    return Sequence(ask(str(arrival), prompt, tenant=tenant), arrival, b"root", 0.0)


def line_of(tenants: str, weights: dict[str, float] | None = None) -> tuple[FairQueue, list[Sequence]]:
    line = FairQueue(weights or {})
    everybody = [someone(arrival, tenant) for arrival, tenant in enumerate(tenants)]
    for sequence in everybody:
        line.add(sequence)
    return line, everybody


def tenants(line: FairQueue) -> str:
    return "".join(sequence.request.tenant for sequence in line)


def test_tenants_take_turns_however_many_requests_they_have() -> None:
    line, _ = line_of("aaaaaaab")
    assert tenants(line)[:3] in {"aba", "baa"} and len(tenants(line)) == len(line) == 8


def test_within_a_tenant_it_is_order_of_arrival() -> None:
    line, everybody = line_of("abab")
    assert [each.arrival_index for each in line if each.request.tenant == "a"] == [0, 2]
    line.remove(everybody[0])
    line.add(everybody[0])
    assert [each.arrival_index for each in line if each.request.tenant == "a"] == [0, 2]


def test_who_was_served_less_is_next() -> None:
    line, _ = line_of("aabb")
    line.record_service("a", 25)
    assert tenants(line) == "bbab" or tenants(line) == "bbaa"[:4]
    line.record_service("b", 100)
    assert tenants(line).startswith("aa")


def test_a_weight_is_a_share() -> None:
    line, everybody = line_of("a" * 40 + "b" * 40, {"a": 3.0})
    seen = ""
    for _ in range(40):
        first = next(iter(line))
        seen += first.request.tenant
        line.remove(first)
        line.record_service(first.request.tenant, 10)
    assert 28 <= seen.count("a") <= 31 and everybody


def test_time_without_requests_is_not_saved_up() -> None:
    line, everybody = line_of("ab")
    line.remove(everybody[1])
    for number in range(100):
        line.record_service("a", 50)
        line.add(someone(100 + number, "a"))
        next(iter(line))
    line.add(someone(900, "b"))
    assert line.service("b") == line.service("a") + NEWCOMER_LAG, "it starts where those in line are"


def test_going_away_pays_no_debt() -> None:
    line, everybody = line_of("ab")
    line.record_service("a", 1000)
    line.remove(everybody[0])
    line.add(someone(7, "a"))
    assert line.service("a") == 1000 and tenants(line) == "ba"


def test_idle_tenants_are_forgotten_when_they_would_gain_nothing() -> None:
    line = FairQueue({})
    line.add(someone(0, "busy"))
    for number in range(2000):
        one = someone(1 + number, f"t{number}")
        line.add(one)
        line.record_service(f"t{number}", 5)
        line.record_service("busy", 5)
        next(iter(line))
        line.remove(one)
    assert len(line._service) < 200


def test_the_books_are_right_whatever_comes_and_goes() -> None:
    rng, line = random.Random(2), FairQueue({"a": 2.0})
    inside: list[Sequence] = []
    for arrival in range(500):
        kind = rng.random()
        if kind < 0.4 or not inside:
            inside.append(someone(arrival, rng.choice("abcd")))
            line.add(inside[-1])
        elif kind < 0.7:
            line.remove(inside.pop(rng.randrange(len(inside))))
        else:
            line.record_service(rng.choice("abcde"), rng.randrange(1, 50))
        walked = list(line)
        assert len(line) == len(inside) == len(walked) and {id(each) for each in walked} == {id(e) for e in inside}
        if inside:
            least = min({each.request.tenant for each in inside}, key=line.service)
            assert line.service(walked[0].request.tenant) == line.service(least)


def test_one_shot_tenants_are_forgotten_though_nobody_else_waits() -> None:
    line = FairQueue({})
    for number in range(2000):
        one = someone(number, f"t{number}")
        line.add(one)
        assert next(iter(line)) is one
        line.record_service(f"t{number}", 10)
        line.remove(one)
        line.record_service(f"t{number}", 1)
    assert len(line._service) < 200 and len(line._charged) < 200
    assert line.service("t1999") == 2000 * 11, "each started where the last to leave was"


def test_forgetting_costs_little_also_when_nobody_can_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, forget = 0, FairQueue._forget_idle

    def counted(line: FairQueue) -> None:
        nonlocal looked_at
        looked_at += len(line._service)
        forget(line)

    monkeypatch.setattr(FairQueue, "_forget_idle", counted)
    line = FairQueue({})
    line.add(someone(0, "first"))
    for number in range(1, 4000):
        one = someone(number, f"t{number}")
        line.add(one)
        line.record_service(f"t{number}", 10)
        line.remove(one)
    assert len(line._service) == 4000 and looked_at < 4 * 4000


def test_who_is_on_board_is_not_forgotten() -> None:
    line = FairQueue({})
    long = someone(0, "long")
    line.add(long)
    line.remove(long)
    for number in range(1, 1000):
        one = someone(number, f"t{number}")
        line.add(one)
        line.record_service(f"t{number}", 10)
        line.remove(one)
        line.record_service("long", 1)
    assert line.service("long") == 999


def test_equals_go_by_their_oldest_request_whatever_their_names() -> None:
    for name in ("a", "zzzz"):
        line = FairQueue({})
        line.add(someone(0, "m"))
        line.add(someone(1, name))
        line.add(someone(2, "n"))
        assert [each.request.tenant for each in line] == ["m", name, "n"]
    line = FairQueue({})
    for one in (someone(0, "a", prompt=1), someone(1, "b"), someone(2, "a")):
        line.add(one)
    assert tenants(line) == "aba", "the second of a has the service of b then, and is younger"


def test_the_age_of_a_tenant_is_that_of_its_oldest_request_in_line() -> None:
    line, everybody = line_of("abab")
    line.record_service("a", 1)
    assert next(iter(line)) is everybody[0], "they are equal: one token is what a started ahead"
    line.remove(everybody[0])
    assert next(iter(line)) is everybody[1], "what is left of a is younger"
    line.add(everybody[0])
    assert next(iter(line)) is everybody[0], "a victim returns with its age"


@pytest.mark.parametrize("name", ["a", "zzzz"])
@pytest.mark.parametrize("head_start", [0, 25])
def test_no_stream_of_new_tenants_starves_one_that_waits(name: str, head_start: int) -> None:
    line, victim = FairQueue({}), someone(10, name)
    for number in range(10):
        line.add(someone(number, f"s{number}"))
    line.add(victim)
    line.record_service(name, head_start)
    for number in range(11, 1000):
        line.add(someone(number, f"t{number:06d}"))
        first = next(iter(line))
        if first is victim:
            break
        line.record_service(first.request.tenant, 10)
        line.remove(first)
    assert number <= 11 + 11 * (head_start + 1), "those in line when it came, once for each token it is ahead"


def test_who_comes_while_seats_are_full_starts_where_those_in_line_are() -> None:
    starts = []
    for looks in (False, True):
        scheduler = make_scheduler(policy="fair", num_blocks=300, max_running_requests=1)
        line = scheduler.waiting
        assert isinstance(line, FairQueue)
        scheduler.add_request(ask("a1", [501] * 4, 400, tenant="a"), 0.0)
        turn(scheduler)
        scheduler.add_request(ask("a2", [502] * 4, 4, tenant="a"), 0.0)
        for _ in range(100):
            turn(scheduler)
            if looks:
                scheduler.check_integrity()
        scheduler.add_request(ask("c1", [503] * 4, 4, tenant="c"), 0.0)
        assert line.service("a") > 100 and line.service("c") == line.service("a") + NEWCOMER_LAG
        starts.append(line.service("c"))
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
                outside.pop(rng.randrange(len(outside))) if back else someone(arrival, f"t{rng.randrange(arrival + 1)}")
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
    line, _ = line_of("abcabc")
    expected, walked = tenants(line), ""
    for sequence in line:
        walked += sequence.request.tenant
        line.record_service(sequence.request.tenant, 1000)
    assert walked == expected == "abcabc"


@pytest.mark.parametrize("overlap", [False, True])
def test_the_scheduler_charges_prompts_let_in_and_tokens_delivered(overlap: bool) -> None:
    scheduler = make_scheduler(policy="fair", overlap=overlap)
    line = scheduler.waiting
    assert isinstance(line, FairQueue)
    scheduler.add_request(ask("a", [501] * 10, 4, tenant="a"), 0.0)
    for _ in range(4):
        turn(scheduler)
    assert scheduler.is_idle and line.service("a") == 14
    scheduler.add_request(ask("again", [501] * 10, 1, tenant="a"), 0.0)
    turn(scheduler)
    assert line.service("a") == 14 + (10 - 8) + 1, "what was cached is free"
