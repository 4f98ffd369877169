"""Overload: when a server counts as recovered, and which limits a row of the verdict misses."""

from typing import Any

from chairlift.bench.server.overload import judge, median_phase, tokens_per_request
from support_shares import for_each


def phase(name: str, goodput: float | None, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "refusal_seconds": {"p99": 0.01}, "recovery_seconds": 1.0, "sent_per_second": 20.0,
        "requests": {"server_errors": 0, "non_terminal": 0, "total": 6, "ok": 3},
        "tokens": {"asked": 12, "free": 0, "output": 3},
        "server_memory_bytes": {"api": {"peak": 100}, "engine": {"peak": 1000}},
    }  # fmt: skip
    return {"name": name, "good_tokens_per_second": goodput, **given, **fields}


def test_a_server_that_holds_everything() -> None:
    found = judge([phase("closed", 9.5), phase("1 x", 9.0), phase("2 x", 10.0)])
    assert found["held"] and found["peak_good_tokens_per_second"] == 10.0
    assert [row["goodput_share"] for row in found["rows"]] == [0.9, 1.0]
    assert [(row["memory_ratio"], row["missed"]) for row in found["rows"]] == [(1.0, []), (1.0, [])]


@for_each(("fields", "said"), [
    ({"good_tokens_per_second": 8.9}, "goodput is 89% of its peak, it should be 90%"),
    ({"good_tokens_per_second": None}, "goodput is 0% of its peak"),
    ({"refusal_seconds": {"p99": 0.06}}, "a rejection takes 60 ms (p99), it should take 50"),
    ({"server_memory_bytes": {"engine": {"peak": 1200}, "api": {"peak": 120}}}, "memory grows to 1.20 times"),
    ({"requests": {"server_errors": 3, "non_terminal": 0, "total": 1}}, "3 responses were 5xx"),
    ({"requests": {"server_errors": 0, "non_terminal": 2, "total": 1}}, "2 requests got no complete response"),
    ({"recovery_seconds": 5.5}, "it recovered after 5.5 s, it should recover within 5 s"),
    ({"recovery_seconds": None}, "it did not recover within 90 s"),
])  # fmt: skip
def test_every_promise_can_be_missed(fields: dict[str, Any], said: str) -> None:
    found = judge([phase("closed", 10.0), phase("1 x", 10.0), phase("2 x", 10.0, **fields)])
    assert not found["held"]
    once, twice = found["rows"]
    assert once["held"] and len(twice["missed"]) == 1 and twice["missed"][0].startswith(said)


def test_a_server_that_queues_may_take_as_long_as_its_queue_to_recover() -> None:
    phases = [phase("closed", 10.0), phase("1 x", 10.0), phase("2 x", 10.0, recovery_seconds=51.0)]
    assert not judge(phases)["held"] and judge(phases)["mode"] == "shedding"
    found = judge(phases, queueing=True)
    assert found["held"] and found["mode"] == "queueing" and found["rows"][1]["recovery_seconds"] == 51.0
    lost = judge([*phases, phase("5 x", 10.0, recovery_seconds=None)], queueing=True)
    assert lost["rows"][2]["missed"] == ["it did not recover within 600 s"]


def test_a_phase_is_held_to_no_more_than_was_sent() -> None:
    found = judge([phase("closed", 10.0), phase("1 x", 4.0, sent_per_second=2.5), phase("2 x", 10.0)])
    assert found["rows"][0]["goodput_share"] == 0.8 and not found["rows"][0]["held"]
    nothing = judge([phase("closed", 0.0), phase("1 x", 0.0, sent_per_second=0.0)])
    assert nothing["rows"][0]["goodput_share"] == 0.0


def test_of_several_rounds_the_medians_are_judged_and_bad_ends_of_all() -> None:
    slow = {"refusal_seconds": {"p99": 0.5}, "recovery_seconds": None}
    bad = {"requests": {"server_errors": 1, "non_terminal": 0, "total": 6, "ok": 3, "by_code": {}}}
    grown = {"server_memory_bytes": {"api": {"peak": 150}, "engine": {"peak": 1000}}}
    rounds = [phase("2 x", 3.0, **slow), phase("2 x, round 2", 9.0, **grown), phase("2 x, round 3", 9.5)]
    found = median_phase(rounds)
    assert found["name"] == "2 x" and found["good_tokens_per_second"] == 9.0
    assert (found["refusal_seconds"], found["recovery_seconds"]) == ({"p99": 0.01}, 1.0)
    assert (found["requests"]["total"], found["tokens"]["asked"]) == (18, 36)
    assert judge([phase("closed", 10.0), phase("1 x", 10.0), found])["rows"][1]["memory_ratio"] == 1150 / 1100
    assert median_phase([rounds[0], rounds[0], rounds[1]])["recovery_seconds"] is None
    worst = median_phase([*rounds[1:], phase("2 x", 9.9, **bad)])
    _, row = judge([phase("closed", 10.0), phase("1 x", 10.0), worst])["rows"]
    assert row["missed"] == ["1 responses were 5xx"]
    unknown = phase("1 x", 9.0, server_memory_bytes=None, refusal_seconds={"p99": None})
    reference = {name: value for name, value in unknown.items() if name != "recovery_seconds"}
    assert median_phase([reference, reference]) == {**unknown, "recovery_seconds": None,
        "requests": {name: 2 * count for name, count in reference["requests"].items()},
        "tokens": {name: 2 * count for name, count in reference["tokens"].items()}, "first_memory_bytes": None,
    }  # fmt: skip


def test_what_a_server_has_grown_by_in_one_round_is_not_forgotten_in_the_next() -> None:
    def peaks(*sizes: int) -> list[dict[str, Any]]:
        return [phase("x", 10.0, server_memory_bytes={"api": {"peak": size}}) for size in sizes]

    rounds = [peaks(100, 100, 200), peaks(200, 200, 210)]
    found = judge([median_phase(places) for places in zip(*rounds, strict=True)])
    assert [row["memory_ratio"] for row in found["rows"]] == [2.0, 2.1] and not found["held"]


def test_what_a_request_asks_for_is_known_or_what_it_got() -> None:
    reference = phase("calm", 1.0, tokens={"asked": 0, "free": 3, "output": 12})
    none = phase("none", 1.0, tokens={"asked": 0, "free": 0, "output": 0}, requests={"ok": 0})
    assert tokens_per_request(phase("exact", 1.0), reference) == 2.0
    assert tokens_per_request(phase("free", 1.0, tokens={"asked": 0, "free": 6, "output": 3}), reference) == 4.0
    assert tokens_per_request(phase("some", 1.0, tokens={"asked": 8, "free": 2, "output": 3}), reference) == 4.0
    assert tokens_per_request(none, none) == 0.0


def test_a_missing_measurement_fails_no_limit() -> None:
    found = judge([phase("closed", 10.0), phase("1 x", 10.0, server_memory_bytes=None, refusal_seconds={"p99": None})])
    assert found["held"] and found["rows"][0]["memory_ratio"] is None
