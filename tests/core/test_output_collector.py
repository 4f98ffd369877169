"""OutputCollector: unread outputs, merged by choice, for any order of outputs."""

import random

from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.engine_output import EngineOutput, FinishReason, Usage
from chairlift.core.output_collector import OutputCollector

USAGE = Usage(3, 5, 0)


def test_what_a_choice_says_in_a_row_is_one_output() -> None:
    collector = OutputCollector()
    counts = [
        collector.put(EngineOutput("a", (1,))),
        collector.put(EngineOutput("b", (7,))),
        collector.put(EngineOutput("a", (2, 3))),
    ]
    assert counts == [1, 1, 2] and bool(collector)
    assert collector.drain() == [EngineOutput("a", (1, 2, 3)), EngineOutput("b", (7,))]
    assert not collector and collector.drain() == []


def test_the_last_of_a_request_is_behind_all_others_of_it() -> None:
    collector = OutputCollector()
    ends = EngineOutput("a", (2,), finish_reason=FinishReason.STOP, usage=USAGE)
    for output in (EngineOutput("a", (1,)), EngineOutput("a", (9,), choice_index=1), ends):
        collector.put(output)
    assert collector.drain() == [EngineOutput("a", (9,), choice_index=1), ends._replace(token_ids=(1, 2))]


def test_a_choice_that_has_ended_keeps_its_end_where_the_request_ends_behind_it() -> None:
    collector = OutputCollector()
    over = EngineOutput("a", (1,), finish_reason=FinishReason.LENGTH)
    abort = EngineOutput("a", finish_reason=FinishReason.ABORT, usage=USAGE)
    for output in (over, EngineOutput("a", (5,), choice_index=1), abort):
        collector.put(output)
    assert collector.drain() == [over, EngineOutput("a", (5,), choice_index=1), abort]


def random_outputs(rng: random.Random) -> list[EngineOutput]:
    """Return the outputs of two requests in a possible order: some choices end, then the request does."""
    by_request: dict[str, list[EngineOutput]] = {}
    for name in "ab":
        outputs = [EngineOutput(name, (token,), choice_index=rng.randrange(3)) for token in range(rng.randrange(12))]
        over = {choice for choice in range(3) if rng.random() < 0.5}
        ends = [
            EngineOutput(name, (100 + choice,), finish_reason=FinishReason.STOP, choice_index=choice) for choice in over
        ]
        rng.shuffle(ends)
        last = ends.pop()._replace(usage=USAGE) if len(over) == 3 else EngineOutput(
            name, finish_reason=FinishReason.ABORT, usage=USAGE, choice_index=rng.randrange(3)
        )  # fmt: skip
        by_request[name] = [*outputs, *ends, last]
    whose = [name for name, outputs in by_request.items() for _ in outputs]
    rng.shuffle(whose)
    return [by_request[name].pop(0) for name in whose]


@given(st.randoms(use_true_random=False), st.floats(0, 1))
def test_however_often_it_is_taken_nothing_is_lost_and_every_end_stands_where_it_did(
    rng: random.Random, often: float
) -> None:
    collector, drained, outputs = OutputCollector(), list[EngineOutput](), random_outputs(rng)
    for output in outputs:
        collector.put(output)
        if rng.random() < often:
            drained += collector.drain()
    drained += collector.drain()
    for name in "ab":
        mine = [output for output in drained if output.request_id == name]
        assert [output.is_final for output in mine] == [False] * (len(mine) - 1) + [True]
        for choice in range(3):
            of_choice = [output for output in mine if output.choice_index == choice]
            before = [output for output in outputs if (output.request_id, output.choice_index) == (name, choice)]
            assert [token for output in of_choice for token in output.token_ids] == [
                token for output in before for token in output.token_ids
            ]
            assert [output.finish_reason for output in of_choice if output.finish_reason] == [
                output.finish_reason for output in before if output.finish_reason
            ]
