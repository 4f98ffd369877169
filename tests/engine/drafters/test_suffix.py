"""SuffixDrafter: what followed the last tokens in earlier outputs, of requests that share a prefix cache only."""

import random

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.config import SpeculationConfig
from chairlift.engine.drafters import suffix
from chairlift.engine.drafters.base import LearnsFromOutputs
from chairlift.engine.drafters.prompt_lookup import PromptLookupDrafter
from chairlift.engine.drafters.suffix import BYTES_PER_TOKEN, MAX_OUTPUT_TOKENS, MIN_OUTPUT_TOKENS, SuffixDrafter
from support_drafters import make_sequence
from support_shares import for_each

OUTPUT = list(range(100, 130))
SCOPES: list[dict[str, str]] = [{}, {"tenant": "b"}, {"salt": "b"}, {"adapter": "b"}, {"tenant": "c", "salt": "b"}]


def make_drafter(**options: int) -> SuffixDrafter:
    config = SpeculationConfig(**{"prompt_lookup_min": 3, **options})
    return SuffixDrafter(config, PromptLookupDrafter(config))


def test_an_earlier_output_is_proposed() -> None:
    drafter = make_drafter()
    assert isinstance(drafter, LearnsFromOutputs) and not drafter.propose(make_sequence([1, 2], OUTPUT[:9]), 4)
    drafter.learn(make_sequence([1, 2], OUTPUT))
    sequence = make_sequence([7, 8, 9], OUTPUT[5:8])
    assert list(drafter.propose(sequence, 40)) == OUTPUT[8:20], "a multiple of those that are matched"
    assert drafter.grade(sequence) == 2
    sequence.token_ids.append(OUTPUT[8])
    assert list(drafter.propose(sequence, 2)) == OUTPUT[9:11]
    sequence.token_ids += OUTPUT[9:27]
    assert list(drafter.propose(sequence, 8)) == OUTPUT[27:]
    assert not drafter.propose(make_sequence([7, 8], OUTPUT[5:7]), 4)
    assert not drafter.propose(make_sequence([7, 8], OUTPUT[-3:]), 4)


def test_the_start_of_an_output_follows_the_end_of_its_prompt() -> None:
    drafter = make_drafter()
    drafter.learn(make_sequence([*range(50), 1, 2, 3], OUTPUT))
    assert list(drafter.propose(make_sequence([60, 61, 1, 2, 3]), 3)) == OUTPUT[:3]
    # Tokens of a prompt are no output.
    assert not drafter.propose(make_sequence([60, 61, 47, 48, 49]), 3)


def test_the_longest_match_is_taken() -> None:
    drafter = make_drafter()
    drafter.learn(make_sequence([1], [10, 11, 12, 13, 50, 51, 52, 53]))
    for _ in range(3):
        drafter.learn(make_sequence([1], [20, 11, 12, 13, 60, 61, 62, 63]))
    assert list(drafter.propose(make_sequence([9], [10, 11, 12, 13]), 2)) == [50, 51]
    assert list(drafter.propose(make_sequence([9], [30, 11, 12, 13]), 2)) == [60, 61]


def test_what_most_outputs_had_is_taken_and_of_equal_ones_the_newest() -> None:
    drafter = make_drafter()
    for last in (60, 60, 50, 61, 60, 50):
        drafter.learn(make_sequence([1], [10, 11, 12, 13, 14, 15, 16, last, last + 1]))
    assert list(drafter.propose(make_sequence([9, 9], range(10, 15)), 9)) == [15, 16, 60, 61]
    drafter = make_drafter()
    for last in (50, 60):
        drafter.learn(make_sequence([1], [10, 11, 12, 13, 14, 15, 16, last, last + 1]))
    assert list(drafter.propose(make_sequence([9, 9], [14, 15, 16]), 9)) == [60, 61]


def test_a_proposal_ends_where_the_outputs_differ_much() -> None:
    drafter = make_drafter()
    for last in range(50, 56):
        drafter.learn(make_sequence([1], [10, 11, 12, 13, 14, 15, 16, last, last + 1]))
    assert list(drafter.propose(make_sequence([9, 9], [10, 11, 12, 13]), 9)) == [14, 15, 16]


def test_a_sequence_with_a_longer_match_of_its_own_is_left_to_prompt_lookup() -> None:
    drafter = make_drafter()
    drafter.learn(make_sequence([1], [12, 13, 14, 60, 61, 62, 63, 64]))
    assert not drafter.propose(make_sequence([11, 12, 13, 14, 50], [11, 12, 13, 14]), 2)
    assert list(drafter.propose(make_sequence([31, 12, 13, 14, 50], [11, 12, 13, 14]), 2)) == [60, 61]


@for_each("learned", range(len(SCOPES)))
@for_each("is_salted", [True, False])
def test_no_other_tenant_salt_or_adapter_sees_an_output(
    monkeypatch: pytest.MonkeyPatch, learned: int, is_salted: bool
) -> None:
    """Also where equal n-grams of all scopes have the same hash."""
    if not is_salted:
        monkeypatch.setattr(suffix, "_salt", lambda root: 0)
    drafter = make_drafter()
    for _ in range(3):
        drafter.learn(make_sequence([1, 2], OUTPUT, **SCOPES[learned]))  # type: ignore[arg-type]
    for number, scope in enumerate(SCOPES):
        sequence = make_sequence([1, 2], OUTPUT[:10], **scope)  # type: ignore[arg-type]
        proposal = list(drafter.propose(sequence, 5))
        assert proposal == (OUTPUT[10:15] if number == learned else [])


def test_the_newest_outputs_of_a_scope_are_found_among_many_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MAX_PLACES", 2)
    drafter = make_drafter()
    drafter.learn(make_sequence([1, 2], OUTPUT))
    for number in range(20):
        drafter.learn(make_sequence([1, 2], OUTPUT, tenant=str(number)))
    assert list(drafter.propose(make_sequence([1], OUTPUT[:10]), 2)) == OUTPUT[10:12]


def test_memory_is_bounded_and_the_oldest_outputs_are_forgotten() -> None:
    rng = random.Random(1)
    drafter = make_drafter(suffix_max_bytes=1000 * BYTES_PER_TOKEN)
    outputs: list[list[int]] = []
    for _ in range(80):
        outputs.append([rng.randrange(10**6) for _ in range(rng.randrange(MIN_OUTPUT_TOKENS, 60))])
        drafter.learn(make_sequence([1, 2], outputs[-1]))
    num_kept, num_tokens = drafter.num_outputs, 0
    for number, output in enumerate(reversed(outputs)):
        num_tokens += 3 + len(output)
        is_kept = number < num_kept
        assert is_kept == (num_tokens <= 1000)
        # Matches that cross the end of the ring are found like others.
        for at in range(3, len(output)):
            expected = output[at : at + 5] if is_kept else []
            assert list(drafter.propose(make_sequence([8], output[:at]), 5)) == expected
    arrays = [array for _, index in drafter._indexes for array in (index._heads_array, index._links_array)]
    used = drafter._tokens_array.nbytes + sum(array.nbytes for array in arrays)
    assert used + 16 * drafter.num_outputs <= 1000 * BYTES_PER_TOKEN


def test_of_a_very_long_output_the_end_is_kept() -> None:
    drafter = make_drafter()
    drafter.learn(make_sequence([1, 2], range(MAX_OUTPUT_TOKENS + 500)))
    assert not drafter.propose(make_sequence([1], range(400, 450)), 5)
    assert list(drafter.propose(make_sequence([1], range(1000, 1050)), 3)) == [1050, 1051, 1052]
    small = make_drafter(suffix_max_bytes=400 * BYTES_PER_TOKEN)
    for _ in range(3):
        small.learn(make_sequence([1, 2], range(5000)))
    assert small.num_outputs == 1
    assert list(small.propose(make_sequence([1], range(4900, 4950)), 3)) == [4950, 4951, 4952]


def test_short_outputs_are_not_kept() -> None:
    drafter = make_drafter()
    drafter.learn(make_sequence([1, 2], OUTPUT[: MIN_OUTPUT_TOKENS - 1]))
    drafter.learn(make_sequence([1, 2]))
    assert drafter.num_outputs == 0


def test_the_memory_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="suffix_max_bytes must be at least 1, got 0"):
        SpeculationConfig(suffix_max_bytes=0)
