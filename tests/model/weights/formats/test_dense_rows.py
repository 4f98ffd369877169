"""dense_rows: whole weights, parts and vectors, in chunks of any size."""

import pytest
import torch
from torch import Tensor

from chairlift.model.weights.formats import dense_rows as module
from chairlift.model.weights.formats.dense_rows import dense_rows
from chairlift.model.weights.shard import Part

WEIGHT = torch.arange(12.0 * 5).view(12, 5)


@pytest.mark.parametrize("elements", [1, 11, 2**22])
@pytest.mark.parametrize(
    "part", [None, (slice(3, 9), slice(1, 4)), (slice(0, 12), slice(0, 5)), (slice(5, 5), slice(0, 2)), (slice(2, 4),)]
)
def test_parts_are_read_in_chunks(part: Part | None, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", elements)
    asked: list[range] = []

    def read(rows: range) -> Tensor:
        asked.append(rows)
        return WEIGHT[list(rows)]

    found = dense_rows((12, 5), part, torch.float64, read)
    assert found.dtype == torch.float64 and torch.equal(found, WEIGHT.double()[part or (slice(None),)])
    assert all(len(rows) <= max(1, elements // 5) for rows in asked)


def test_a_vector_has_one_number_in_a_row() -> None:
    found = dense_rows((12,), (slice(2, 5),), torch.float32, lambda rows: WEIGHT[list(rows), 0])
    assert torch.equal(found, WEIGHT[2:5, 0])
