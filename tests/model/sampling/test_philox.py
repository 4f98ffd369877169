"""The published vectors of Philox, and that its numbers are uniform and independent of seed, choice and position."""

import numpy as np
import pytest

from chairlift.model.sampling.philox import philox4x32, uniforms
from support_chi_square import chi_square_p
from support_shares import for_each

KNOWN = [  # Random123, tests/kat_vectors: counter, key, result
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
NUMBERS = 20_000


def drawn(seeds: object, choices: object, positions: object) -> np.ndarray:
    rows = np.broadcast_arrays(*(np.asarray(part, np.int64) for part in (seeds, choices, positions)))
    return uniforms(*(np.ascontiguousarray(row) for row in rows))


STREAMS = {
    "positions of one seed": drawn(7, 0, np.arange(NUMBERS)),
    "seeds at one position": drawn(np.arange(NUMBERS), 0, 3),
    "negative seeds": drawn(-1 - np.arange(NUMBERS), 0, 0),
    "choices of one position": drawn(7, np.arange(NUMBERS), 3),
}


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_the_published_vectors_come_out(
    counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]
) -> None:
    words = philox4x32(*(tuple(np.array([word], np.uint64) for word in part) for part in (counter, key)))
    assert tuple(int(word[0]) for word in words) == result


def test_a_number_is_made_of_the_first_word_and_the_high_bits_of_the_second() -> None:
    assert drawn(0, 0, [0])[0] == ((0x6627E8D5 << 21) | (0xE169C58D >> 11)) / 2**53


def test_a_number_depends_on_its_own_row_only() -> None:
    generator = np.random.default_rng(0)
    seeds = generator.integers(-(2**63), 2**63 - 1, 500)
    choices, positions = generator.integers(0, 9, 500), generator.integers(0, 2**40, 500)
    together = uniforms(seeds, choices, positions)
    alone = [uniforms(seeds[i : i + 1], choices[i : i + 1], positions[i : i + 1])[0] for i in range(500)]
    assert together.tolist() == alone


def test_numbers_lie_in_the_half_open_unit_interval_with_53_bits() -> None:
    numbers = drawn(1, 0, np.arange(100_000))
    assert numbers.min() >= 0 and numbers.max() < 1
    whole = numbers * 2.0**53
    assert (whole == np.floor(whole)).all()
    low_bits = whole.astype(np.uint64) & np.uint64(1)
    assert 0.49 < low_bits.mean() < 0.51


@pytest.mark.parametrize("name", STREAMS)
def test_numbers_are_uniform(name: str) -> None:
    counts = np.bincount((STREAMS[name] * 100).astype(int), minlength=100)
    assert chi_square_p(counts, np.full(100, NUMBERS / 100)) > 1e-4


@for_each("name", STREAMS)
@for_each("lag", [1, 2, 17])
def test_neighbours_are_independent(name: str, lag: int) -> None:
    cells = (STREAMS[name] * 10).astype(int)
    counts = np.bincount(cells[:-lag] * 10 + cells[lag:], minlength=100)
    assert chi_square_p(counts, np.full(100, (NUMBERS - lag) / 100)) > 1e-4


def test_seed_choice_and_position_give_different_streams() -> None:
    streams = [drawn(7, 0, np.arange(1000)), drawn(8, 0, np.arange(1000)), drawn(7, 1, np.arange(1000))]
    streams += [drawn(7 + 2**32, 0, np.arange(1000)), drawn(7, 0, np.arange(1000) + 2**32)]
    for index, one in enumerate(streams):
        for other in streams[index + 1 :]:
            assert not (one == other).any()
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.15
