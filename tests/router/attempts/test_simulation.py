"""Simulation of RequestMachine: every interleaving of events up to a depth, and longer seeded histories."""

from random import Random

import pytest

from chairlift.router.attempts.actions import CompleteResponse
from chairlift.router.attempts.generation_fields import GenerationFields
from support_attempts import LIMITS, STREAM, WHOLE, World, make_world

UNRESUMABLE = GenerationFields(is_streamed=True)
CASES = {
    "streamed": (STREAM, False, []),
    "hedged": (STREAM, True, [("picked", 1, 0), ("sent", 1)]),
    "streaming": (STREAM, False, [("picked", 1, 0), ("sent", 1), ("next", 1), ("next", 1)]),
    "whole": (WHOLE, False, [("picked", 1, 0), ("sent", 1), ("next", 1)]),
    "opaque": (UNRESUMABLE, False, [("picked", 1, 0), ("sent", 1)]),
}


def world_of(case: str) -> World:
    """Return a world after the case's first events."""
    fields, hedges, first = CASES[case]
    world = make_world(fields, hedges=hedges, deadline=100.0)
    for choice in first:
        world.apply(choice)
    return world


def explore(case: str, depth: int) -> tuple[int, int]:
    """Let everything happen that can, `depth` events long; return the number of states and of complete responses."""
    states = [world_of(case)]
    num_states = num_complete = 0
    for _ in range(depth):
        following: dict[bytes, World] = {}
        for world in states:
            for choice in world.choices():
                after = world.copy()
                after.apply(choice)
                if after.final is None:
                    following[after.key()] = after
                num_complete += isinstance(after.final, CompleteResponse)
                num_states += 1
        states = list(following.values())
    return num_states, num_complete


@pytest.mark.share(2)
@pytest.mark.parametrize("case", CASES)
def test_every_interleaving_of_four_events_keeps_the_invariants(case: str) -> None:
    assert explore(case, 4)[0] > 500


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_every_interleaving_of_six_events_keeps_the_invariants(case: str) -> None:
    num_states, num_complete = explore(case, 6)
    assert num_states > 10_000
    assert num_complete


WEIGHTS = {"next": 12, "picked": 6, "sent": 8, "gone": 0.02, "reported": 0.1, "timer": 0.2, "draining": 0.5}


@pytest.mark.share(2)
@pytest.mark.parametrize("case", CASES)
def test_longer_histories_end_with_one_final_answer(case: str) -> None:
    """Each of 400 seeded histories of a case (2,000 in all) goes on until it is final; most of them are complete."""
    num_complete = num_resumed = 0
    for seed in range(400):
        random, world = Random(f"{case} {seed}"), world_of(case)
        for _ in range(300):
            if world.final is not None:
                break
            choices = world.choices()
            world.apply(random.choices(choices, [WEIGHTS.get(choice[0], 1) for choice in choices])[0])
        assert world.final is not None
        for number in {*world.picking, *world.picked} - {*world.released}:
            raise AssertionError(f"attempt {number} was not released")
        num_complete += isinstance(world.final, CompleteResponse)
        num_resumed += isinstance(world.final, CompleteResponse) and len(world.picked) > 1
    assert num_complete > 100
    assert num_resumed > (10 if case == "opaque" else 50)
    assert LIMITS.max_attempts == 3
