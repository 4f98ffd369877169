"""Tests of ops_for, batch_invariant_ops_for."""

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps
from chairlift.model.layers.select_ops import batch_invariant_ops_for

CPU = torch.device("cpu")


def test_rows_that_do_not_depend_on_the_batch_need_a_gpu_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert isinstance(batch_invariant_ops_for(torch.bfloat16, cuda), BatchInvariantOps)
    for dtype, device, why in (
        (torch.float32, CPU, "the native kernels alone"), (torch.float32, torch.device("mps"), "the device is mps"),
        (torch.float64, cuda, "the model has float64"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            batch_invariant_ops_for(dtype, device)
    monkeypatch.setattr("chairlift.model.device.triton_package.has_triton", lambda: False)
    with pytest.raises(ConfigError, match="needs Triton's kernels, but the package triton is not installed; leave"):
        batch_invariant_ops_for(torch.bfloat16, cuda)
