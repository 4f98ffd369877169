"""The fair line: tenants take turns by what they were served."""

import random

import pytest

from chairlift.engine.lines.fair import FairLine
from chairlift.engine.sequence import Sequence
from support_engine import ask, make_scheduler, turn


def someone(arrival: int, tenant: str, prompt: int = 10) -> Sequence:
    return Sequence(ask(str(arrival), prompt, tenant=tenant), arrival, b"root", 0.0)


def line_of(tenants: str, weights: dict[str, float] | None = None) -> tuple[FairLine, list[Sequence]]:
    line = FairLine(weights or {})
    everybody = [someone(arrival, tenant) for arrival, tenant in enumerate(tenants)]
    for sequence in everybody:
        line.add(sequence)
    return line, everybody


def tenants(line: FairLine) -> str:
    return "".join(sequence.request.tenant for sequence in line)


def test_tenants_take_turns_however_many_requests_they_have() -> None:
    line, _ = line_of("aaaaaaab")
    assert tenants(line)[:3] in {"aba", "baa"} and len(tenants(line)) == len(line) == 8


def test_within_a_tenant_it_is_order_of_arrival() -> None:
    line, everybody = line_of("abab")
    assert [each.arrival for each in line if each.request.tenant == "a"] == [0, 2]
    line.remove(everybody[0])
    line.add(everybody[0])
    assert [each.arrival for each in line if each.request.tenant == "a"] == [0, 2]


def test_who_was_served_less_is_next() -> None:
    line, _ = line_of("aabb")
    line.served("a", 25)
    assert tenants(line) == "bbab" or tenants(line) == "bbaa"[:4]
    line.served("b", 100)
    assert tenants(line).startswith("aa")


def test_a_weight_is_a_share() -> None:
    line, everybody = line_of("a" * 40 + "b" * 40, {"a": 3.0})
    seen = ""
    for _ in range(40):
        first = next(iter(line))
        seen += first.request.tenant
        line.remove(first)
        line.served(first.request.tenant, 10)
    assert 28 <= seen.count("a") <= 31 and everybody


def test_time_without_requests_is_not_saved_up() -> None:
    line, everybody = line_of("ab")
    line.remove(everybody[1])
    for number in range(100):
        line.served("a", 50)
        line.add(someone(100 + number, "a"))
        next(iter(line))
    line.add(someone(900, "b"))
    behind = line.service("a") - line.service("b")
    assert 0 <= behind <= 100, "it starts about where those in line are"


def test_going_away_pays_no_debt() -> None:
    line, everybody = line_of("ab")
    line.served("a", 1000)
    line.remove(everybody[0])
    line.add(someone(7, "a"))
    assert line.service("a") == 1000 and tenants(line) == "ba"


def test_idle_tenants_are_forgotten_when_they_would_gain_nothing() -> None:
    line = FairLine({})
    line.add(someone(0, "busy"))
    for number in range(2000):
        one = someone(1 + number, f"t{number}")
        line.add(one)
        line.served(f"t{number}", 5)
        line.served("busy", 5)
        next(iter(line))
        line.remove(one)
    assert len(line._service) < 200


def test_the_books_are_right_whatever_comes_and_goes() -> None:
    rng, line = random.Random(2), FairLine({"a": 2.0})
    inside: list[Sequence] = []
    for arrival in range(500):
        kind = rng.random()
        if kind < 0.4 or not inside:
            inside.append(someone(arrival, rng.choice("abcd")))
            line.add(inside[-1])
        elif kind < 0.7:
            line.remove(inside.pop(rng.randrange(len(inside))))
        else:
            line.served(rng.choice("abcde"), rng.randrange(1, 50))
        walked = list(line)
        assert len(line) == len(inside) == len(walked) and {id(each) for each in walked} == {id(e) for e in inside}
        if inside:
            least = min({each.request.tenant for each in inside}, key=line.service)
            assert line.service(walked[0].request.tenant) == line.service(least)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_scheduler_charges_prompts_let_in_and_tokens_delivered(overlap: bool) -> None:
    scheduler = make_scheduler(policy="fair", overlap=overlap)
    line = scheduler.line
    assert isinstance(line, FairLine)
    scheduler.add(ask("a", [501] * 10, 4, tenant="a"), 0.0)
    for _ in range(4):
        turn(scheduler)
    assert scheduler.is_idle and line.service("a") == 14
    scheduler.add(ask("again", [501] * 10, 1, tenant="a"), 0.0)
    turn(scheduler)
    assert line.service("a") == 14 + (10 - 8) + 1, "what was cached is free"
