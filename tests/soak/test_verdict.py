"""The verdict of a soak can fail: for every finding there is a course that it finds bad, and a calm one is good."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from soak.fault_injection import Done, Fault
from soak.raw_client import End, Ending
from soak.request_mix import WHOLE, Order
from soak.sampling import IdleSample, Process, Sample
from soak.verdict import MAX_GROWTH, Course, findings, grown, in_harm, memory, settled

MINUTES = 30
SECONDS = MINUTES * 60.0
KILLED = Done(Fault.KILL, 200.0, 208.0)
MIB = 2**20


def process(pid: int = 1, memory: float = 100 * MIB, **more: Any) -> Process:
    there: dict[str, Any] = {"descriptors": 20, "threads": 5, "shared_files": 0, **more}
    return Process(pid=pid, rss=int(memory), pss=int(memory * 0.8), uss=int(memory * 0.7), **there)


def sample(at: float, *, api: Process | None = None, engine: Process | None = None, **more: Any) -> Sample:
    there: dict[str, Any] = {"files": 2, "children": 1, "metrics": {"engine_restarts_total": 1.0}, "used_blocks": 0.0}
    return Sample(at=at, api=api or process(), engine=engine or process(2), **{**there, **more})


def rest(at: float, **more: Any) -> IdleSample:
    there: dict[str, Any] = {"has_rested": True, "riders": 0, "used_blocks": 0, "faults": (), "is_same": True}
    looked = {key: more.pop(key) for key in ("api", "engine", "files", "children") if key in more}
    return IdleSample(sample=sample(at, **looked), **{**there, **more})


def course(make: Callable[[float], Sample] = sample, **more: Any) -> Course:
    there: dict[str, Any] = {
        "seconds": SECONDS, "settle": 300.0, "samples": [make(at * 2.0) for at in range(int(SECONDS / 2))],
        "rests": [rest(SECONDS * (number + 1) / 10) for number in range(10)], "harms": [KILLED], "odd": [],
        "total": 1000, "dropped": 0, "refused": 50, "exit_code": 0, "left_files": 0,
    }  # fmt: skip
    return Course(**{**there, **more})


def bad(told: Course) -> list[str]:
    return [each.name for each in findings(told) if not each.good]


def test_a_calm_course_is_good() -> None:
    assert bad(course()) == []


@pytest.mark.parametrize("refused", [0, 201, 1000])
def test_neither_no_overload_nor_hardly_anything_else_is_good(refused: int) -> None:
    (found,) = bad(course(refused=refused))
    assert "overload" in found


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "name"), [("api", "API process"), ("engine", "engine process")])
def test_a_process_that_grows_all_the_time_is_found(place: str, name: str) -> None:
    def leaking(share: float) -> Callable[[float], Sample]:
        return lambda at: sample(at, **{place: process(memory=100 * MIB * (1 + share * at / SECONDS))})

    (found,) = bad(course(leaking(0.15)))
    assert name in found
    assert bad(course(leaking(0.03))) == [] and bad(course(leaking(-0.3))) == []


def test_a_process_that_finds_its_level_in_the_first_minutes_is_good() -> None:
    def warming(at: float) -> Sample:
        return sample(at, api=process(memory=100 * MIB + min(at, 290.0) * MIB))

    assert bad(course(warming)) == []
    assert any("API" in name for name in bad(course(warming, settle=30.0))), "it is looked at from then on"


def test_one_high_moment_is_no_growth_and_a_step_is() -> None:
    def moment(at: float) -> Sample:
        return sample(at, api=process(memory=(300 if at == 1700.0 else 100) * MIB))

    def step(at: float) -> Sample:
        return sample(at, api=process(memory=(100 if at < 900 else 106) * MIB))

    assert bad(course(moment)) == []
    assert len(bad(course(step))) == 1


def test_what_is_resident_counts_and_not_with_how_many_it_is_shared() -> None:
    def shared(at: float) -> Sample:
        there = process()
        return sample(at, api=replace(there, pss=int(there.pss * (1 + 0.2 * at / SECONDS))))

    def growing(at: float) -> Sample:
        there = process()
        return sample(at, api=replace(there, rss=int(there.rss * (1 + 0.2 * at / SECONDS))))

    assert bad(course(shared)) == [] and len(bad(course(growing))) == 1


def test_an_engine_is_judged_from_its_last_start_on() -> None:
    """Before it was killed it was four times as large; its successor grows while it warms up, and then no more."""

    def restarted(at: float) -> Sample:
        engine = process(2, 400 * MIB) if at < 208 else process(3, (50 + min(50.0, (at - 208) / 6)) * MIB)
        return sample(at, engine=engine)

    told = course(restarted)
    assert settled(told) == 508.0 and bad(told) == []

    def leaking(at: float) -> Sample:
        return sample(at, engine=process(3, (100 + max(0.0, at - 508) / 60) * MIB))

    assert any("engine" in name for name in bad(course(leaking)))


def test_too_little_to_judge_is_not_good() -> None:
    assert any("memory" in name for name in bad(course(samples=[sample(0.0)])))
    without = memory(course(lambda at: replace(sample(at), engine=None)), "engine", lambda each: each.engine, 300.0)
    assert not without.good and "too little" in without.said
    late = Done(Fault.KILL, SECONDS - 100, SECONDS - 90)
    assert not all(each.good for each in findings(course(harms=[late])))


def test_growth_is_that_of_medians() -> None:
    growth = grown(course(lambda at: sample(at, api=process(memory=MIB * (100 + at / 18)))), lambda each: 0.0, 300.0)
    assert growth is not None and growth.share == 0.0
    growth = grown(course(), lambda each: 100 + each.at / 18, 300.0)
    assert growth is not None and growth.share > MAX_GROWTH
    assert (growth.before, growth.after) == (pytest.approx(125, abs=0.2), pytest.approx(191.7, abs=0.2))


# -- what is left over -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "name"), [
    ({"api": process(descriptors=23)}, "descriptors of the API"),
    ({"engine": process(descriptors=23)}, "descriptors of the engine"),
    ({"api": process(threads=8)}, "threads of the API"), ({"engine": process(threads=8)}, "threads of the engine"),
    ({"engine": process(shared_files=1)}, "shared memory"), ({"files": 3}, "temporary files"),
    ({"children": 2}, "children"),
])  # fmt: skip
def test_what_is_left_over_at_the_last_rest_is_found(last: dict[str, Any], name: str) -> None:
    rests = [*course().rests[:-1], rest(SECONDS, **last)]
    (found,) = bad(course(rests=rests))
    assert found.startswith(name)


def test_a_few_descriptors_more_are_none() -> None:
    assert bad(course(rests=[*course().rests[:-1], rest(SECONDS, api=process(descriptors=22))])) == []


@pytest.mark.parametrize("last", [
    {"has_rested": False, "riders": 1}, {"has_rested": False, "used_blocks": 3}, {"faults": ("a block too many",)},
])  # fmt: skip
def test_a_rider_a_block_or_a_fault_of_the_ledger_at_rest_is_found(last: dict[str, Any]) -> None:
    assert bad(course(rests=[*course().rests, rest(SECONDS, **last)])) == [
        "at rest every block is back and nobody rides"
    ]


def test_another_answer_to_the_reference_is_found() -> None:
    assert len(bad(course(rests=[*course().rests, rest(SECONDS, is_same=False)]))) == 1


def test_without_a_time_of_rest_nothing_is_good() -> None:
    assert len(bad(course(rests=[]))) == 3


# -- requests ----------------------------------------------------------------------------------------------------------


CHAT = Order("chat", b"")
TIMED = Order("short timeout", b"", statuses=frozenset({200, 408}))
BAD = Order("bad: 1", b"", statuses=frozenset({400}))


def ending(end: End, status: int, code: str = "", began: float = 1000.0) -> Ending:
    return Ending(end, status, code, b"", began, began + 1)


@pytest.mark.parametrize(("asked", "how", "name"), [
    (CHAT, ending(End.CUT, 200), "last word"), (CHAT, ending(End.HUNG, 0), "last word"),
    (CHAT, ending(End.NO_CONNECTION, 0), "last word"), (CHAT, ending(End.CUT, 200, began=205.0), "last word"),
    (CHAT, ending(End.ANSWERED, 500, "internal_error"), "5xx"), (CHAT, ending(End.ANSWERED, 503, "starting"), "5xx"),
    (CHAT, ending(End.ERROR_EVENT, 200, "engine_dead"), "5xx"), (CHAT, ending(End.ANSWERED, 400, "x"), "may get"),
    (CHAT, ending(End.ERROR_EVENT, 200, "detokenize_failed"), "may get"),
    (CHAT, ending(End.ERROR_EVENT, 200, "timeout"), "may get"), (BAD, ending(End.ANSWERED, 200), "may get"),
])  # fmt: skip
def test_an_end_that_no_request_should_have_is_found(asked: Order, how: Ending, name: str) -> None:
    (found,) = bad(course(odd=[(asked, how)]))
    assert name in found


@pytest.mark.parametrize(("asked", "how"), [
    (CHAT, ending(End.ANSWERED, 429, "overloaded")), (CHAT, ending(End.ANSWERED, 503, "starting", began=207.0)),
    (CHAT, ending(End.ERROR_EVENT, 200, "engine_dead", began=199.5)), (TIMED, ending(End.ANSWERED, 408, "timeout")),
    (TIMED, ending(End.ERROR_EVENT, 200, "timeout")), (BAD, ending(End.ANSWERED, 400, "invalid_request")),
])  # fmt: skip
def test_an_end_that_is_fine(asked: Order, how: Ending) -> None:
    assert asked.ends == WHOLE and bad(course(odd=[(asked, how)])) == []


def test_what_nobody_could_look_at_is_no_good_word() -> None:
    (found,) = bad(course(dropped=1))
    assert "last word" in found


def test_a_mistake_of_the_server_has_no_excuse_while_its_engine_is_away() -> None:
    (found,) = bad(course(odd=[(CHAT, ending(End.ANSWERED, 500, "internal_error", began=207.0))]))
    assert "5xx" in found


def test_only_a_dead_engine_excuses_and_only_while_it_is_away() -> None:
    how = ending(End.ANSWERED, 503)
    assert in_harm(how, [Done(Fault.STOP, 900.0, None)]) and in_harm(how, [Done(Fault.KILL, 1000.5, 1010.0)])
    assert not in_harm(how, [Done(Fault.BROKEN_KEYS, 900.0, 1100.0)])
    assert not in_harm(how, [Done(Fault.KILL, 900.0, 999.0)]) and not in_harm(how, [Done(Fault.KILL, 1002.0, 1009.0)])


@pytest.mark.parametrize("more", [
    {"total": 0}, {"refused": 0}, {"exit_code": 1}, {"left_files": 1}, {"harms": [KILLED, KILLED]}, {"harms": []},
    {"harms": [Done(Fault.KILL, 200.0, None)]},
])  # fmt: skip
def test_what_did_not_happen_as_it_should_is_found(more: dict[str, Any]) -> None:
    assert bad(course(**more))
