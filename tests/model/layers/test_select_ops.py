"""ops_for, batch_invariant_ops_for: the ops for a dtype and a device, and errors that say what is missing."""

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps
from chairlift.model.layers.fused_ops import FusedOps
from chairlift.model.layers.ops import TorchOps
from chairlift.model.layers.select_ops import batch_invariant_ops_for, ops_for
from chairlift.model.layers.triton_ops import TritonOps

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


def test_float64_stays_with_the_oracle() -> None:
    assert isinstance(ops_for(torch.float64, CPU), TorchOps)
    assert isinstance(ops_for(torch.float32, CPU), FusedOps)


def test_a_gpu_runs_kernels_where_triton_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 1)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert isinstance(ops_for(dtype, gpu), TritonOps)
    assert isinstance(ops_for(torch.float64, gpu), TorchOps)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert isinstance(ops_for(torch.bfloat16, gpu), FusedOps)
