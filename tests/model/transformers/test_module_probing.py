"""are_close: roundings agree, nothing else does; takes_one_tensor: a second parameter counts, also with a default."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.pytorch_utils import Conv1D

from chairlift.model.transformers.module_probing import are_close, sample_rows, takes_one_tensor

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_rounding_agrees_and_a_changed_number_does_not(dtype: torch.dtype) -> None:
    rows = sample_rows(50, dtype, CPU)
    assert torch.equal(rows, sample_rows(50, dtype, CPU)) and rows.shape == (4, 50)
    assert are_close(rows * (1 + torch.finfo(dtype).eps), rows)
    for wrong in (rows + 0.5, 1.2 * rows, rows[:3], rows.half(), rows * torch.nan, "rows"):
        assert not are_close(wrong, rows)
    assert not are_close(rows, rows / 0)


class Optional(nn.Module):
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x * scale


class Anything(nn.Module):
    def forward(self, *tensors: Tensor) -> Tensor:
        return tensors[0]


@pytest.mark.parametrize(
    ("module", "takes_one"),
    [
        (LlamaRMSNorm(8), True), (nn.SiLU(), True), (nn.LayerNorm(8), True), (Conv1D(8, 8), True),
        (MambaRMSNormGated(8, 8), False), (nn.Bilinear(8, 8, 8), False), (Optional(), False), (Anything(), False),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_module_with_a_second_parameter_does_not_take_one_tensor(module: Any, takes_one: bool) -> None:
    assert takes_one_tensor(module) == takes_one
