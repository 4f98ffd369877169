"""are_close: roundings agree, everything else does not."""

import pytest
import torch

from chairlift.model.transformers.sample_rows import are_close, sample_rows

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_rounding_agrees_and_a_changed_number_does_not(dtype: torch.dtype) -> None:
    rows = sample_rows(50, dtype, CPU)
    assert torch.equal(rows, sample_rows(50, dtype, CPU)) and rows.shape == (4, 50)
    assert are_close(rows * (1 + torch.finfo(dtype).eps), rows)
    for wrong in (rows + 0.5, 1.2 * rows, rows[:3], rows.half(), rows * torch.nan, "rows"):
        assert not are_close(wrong, rows)
    assert not are_close(rows, rows / 0)
