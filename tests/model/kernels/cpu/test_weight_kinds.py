"""weight_kinds: each kind's layout has the bits that its type has in a file, and few more for its scales."""

import pytest

from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.kernels.cpu.weight_kinds import BLOCK_KINDS, CODE_LAYOUTS, KINDS, num_steps
from support_native import TYPES, blocks, packed


def test_every_kind_has_a_number_of_its_own() -> None:
    assert len(set(KINDS.values())) == len(KINDS)
    assert len(set(BLOCK_KINDS.values())) == len(BLOCK_KINDS)
    assert set(BLOCK_KINDS) == {name for name, kind in TYPES.items() if kind.block_size > 1}
    assert set(BLOCK_KINDS.values()) <= set(CODE_LAYOUTS)


@pytest.mark.parametrize("name", list(BLOCK_KINDS))
def test_a_packed_weight_is_at_most_5_percent_larger_than_in_the_file(name: str) -> None:
    rows: BlockRows = blocks(name, 256, 2048, seed=1)
    bytes_in_memory = sum(piece.nbytes for piece in packed(rows).memory)
    assert rows.rows.nbytes <= bytes_in_memory <= 1.06 * rows.rows.nbytes


def test_inputs_are_padded_to_whole_steps_and_groups() -> None:
    assert [num_steps(33, KINDS[name]) for name in ("float32", "bfloat16", "int8-channel", "int8", "int6", "int4")] == [
        33, 17, 9, 16, 12, 8,
    ]  # fmt: skip
    assert num_steps(512, BLOCK_KINDS["Q6_K"]) == 16 * 6
