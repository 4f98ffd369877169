"""StoredRows: adjacent rows without a read of others, rows in an order, parts of them, and rows of codes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from chairlift.model.config.gguf_types import TYPES_BY_NAME
from chairlift.model.kernels.block_rows import BlockRows
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_rows import StoredRows
from support_architectures import StoredTensor

WHOLE = torch.arange(40).view(8, 5).float()


class NotingTensor(StoredTensor):
    """A StoredTensor that notes the parts that are read, and has codes of Q8_0 in an order."""

    __slots__ = ()
    read: list[Part | None] = []  # noqa: RUF012  (cleared by each test)
    order: np.ndarray | None = None

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        self.read.append(part)
        return super().dense(part, dtype)

    def codes(self) -> BlockRows:  # type: ignore[override]
        return BlockRows(TYPES_BY_NAME["Q8_0"], np.arange(8 * 34, dtype=np.uint8).reshape(8, 34), self.order)


@pytest.fixture
def whole() -> NotingTensor:
    NotingTensor.read.clear()
    NotingTensor.order = None
    return NotingTensor("w", WHOLE)


def test_adjacent_rows_are_read_alone(whole: NotingTensor) -> None:
    rows = StoredRows(whole, range(2, 5))
    assert (rows.shape, rows.name, rows.file, rows.dense_dtype) == ((3, 5), "w", Path("model.safetensors"), "float32")
    assert torch.equal(rows.dense(), WHOLE[2:5])
    assert torch.equal(rows.dense((slice(1, 3), slice(0, 2))), WHOLE[3:5, :2])
    assert whole.read == [(slice(2, 5), slice(0, 5)), (slice(3, 5), slice(0, 2))]


def test_rows_may_be_in_any_order(whole: NotingTensor) -> None:
    rows = StoredRows(whole, [6, 2, 3, 7])
    assert torch.equal(rows.dense(), WHOLE[[6, 2, 3, 7]])
    assert torch.equal(rows.dense((slice(1, 4), slice(3, 5))), WHOLE[[2, 3, 7], 3:])
    assert rows.dense((slice(2, 2), slice(0, 5))).shape == (0, 5)


@pytest.mark.parametrize("order", [None, [7, 6, 5, 4, 3, 2, 1, 0]])
@pytest.mark.parametrize("rows", [range(1, 4), [5, 0, 2]])
def test_codes_are_of_the_same_rows(whole: NotingTensor, rows: list[int], order: list[int] | None) -> None:
    NotingTensor.order = None if order is None else np.array(order, np.int32)
    whole_codes, found = whole.codes(), StoredRows(whole, rows).codes()
    expected = whole_codes.rows if order is None else whole_codes.rows[order]
    assert np.array_equal(found.rows if found.order is None else found.rows[found.order], expected[list(rows)])
    assert found.shape == (3, 32)
