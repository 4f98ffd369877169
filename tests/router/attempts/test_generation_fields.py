"""read_generation_fields: what a body asks for, a seed where it has none, and bodies that no replica accepts."""

from random import Random
from typing import Any

from chairlift.router.attempts.generation_fields import GenerationFields, read_generation_fields
from support_shares import for_each


@for_each(
    ("body", "fields"),
    [
        ({}, {"seed": 9}),
        ({"stream": True, "seed": 0}, {"is_streamed": True}),
        ({"seed": None}, {"seed": 9}),
        ({"n": 3}, {"seed": 9, "num_choices": 3}),
        ({"n": None}, {"seed": 9}),
        ({"n": 2, "prompt": ["a", "b", "c"]}, {"seed": 9, "num_choices": 6}),
        ({"prompt": [1, 2, 3]}, {"seed": 9}),
        ({"prompt": [[1], [2]]}, {"seed": 9, "num_choices": 2}),
        ({"prompt": []}, {"seed": 9}),
        ({"seed": 1, "return_token_ids": True}, {"returns_token_ids": True}),
        ({"seed": 1, "stream": True, "stream_options": {"include_usage": True}},
         {"is_streamed": True, "includes_usage": True}),
        ({"seed": 1, "stream_options": {"include_usage": True}}, {}),
        ({"seed": 1, "stream": True, "stream_options": {"include_usage": False}}, {"is_streamed": True}),
        ({"seed": 1, "resume": [[4, 5]]}, {"resume": ((4, 5),)}),
        ({"seed": 1, "n": 2, "resume": [[], [5]]}, {"resume": ((), (5,)), "num_choices": 2}),
    ],
)  # fmt: skip
def test_the_fields_of_a_body(body: dict[str, Any], fields: dict[str, Any]) -> None:
    class Nine(Random):
        def getrandbits(self, bits: int) -> int:
            assert bits == 63
            return 9

    assert read_generation_fields(body, Nine()) == GenerationFields(is_resumable=True, **fields)


@for_each(
    "body",
    [
        {"n": 0}, {"n": "2"}, {"n": True}, {"n": 129}, {"n": 2.0}, {"n": 100, "prompt": ["a", "b"]}, {"resume": 5},
        {"resume": [5]}, {"resume": [["a"]]}, {"resume": [[-1]]}, {"resume": [[True]]}, {"resume": [[1], [2]]},
    ],
)  # fmt: skip
def test_a_body_that_no_replica_accepts_is_passed_on_unchanged(body: dict[str, Any]) -> None:
    assert read_generation_fields(body | {"stream": True}, Random(0)) == GenerationFields(is_streamed=True)


def test_assigned_seeds_are_random_and_fit_into_63_bits() -> None:
    random = Random(1)
    seeds = [read_generation_fields({}, random).seed for _ in range(100)]
    assert len(set(seeds)) == 100
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
