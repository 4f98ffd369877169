"""Int4Packer: a model with 4-bit codes has the logits of its dequantized numbers; damaged scales are named."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.layers.ops import TorchOps
from chairlift.model.layers.triton_ops import TritonOps
from chairlift.model.loading.model_building import load_model
from chairlift.model.weights.int4_packer import Int4Packer
from support_batches import teacher_forced_logits
from support_gguf_models import MIXES, write_gguf
from support_native_models import BATCH

CPU = torch.device("cpu")


def load(
    folder: Path, ops: TorchOps, *, keeps: bool, dtype: str = "float32", batch: Sequence[Sequence[int]] = BATCH
) -> tuple[list[torch.Tensor], str | None]:
    backend = TorchBackend(ops, packer=Int4Packer(CPU, ops.pack) if keeps else None)
    model, _ = load_model(folder, dtype=dtype, device=CPU, max_model_len=None, choose_backend=lambda _: backend)
    rows = teacher_forced_logits(model, batch, getattr(torch, dtype), max_chunk=16)
    return rows, dict(backend.report()).get("quantization")


@pytest.mark.parametrize(("mix", "kept"), [("Q4_0", 15), ("Q4_1", 15), ("Q4_K_M", 2), ("Q8_0", 0)])
def test_logits_are_those_of_the_dequantized_numbers(mix: str, kept: int, tmp_path: Path) -> None:
    """Of two layers with seven weights each, and an lm_head; q, k and v need 4 bits together, and so do gate and up."""
    write_gguf(tmp_path / "a.gguf", "llama", MIXES[mix])
    folder = gguf_folder(tmp_path / "a.gguf")
    found, report = load(folder, TorchOps(), keeps=True)
    expected, _ = load(folder, TorchOps(), keeps=False)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert (0 if report is None else int(report.split()[0])) == kept


def test_products_of_triton_are_near_those_of_torch(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "qwen3", MIXES["Q4_0"])
    folder = gguf_folder(tmp_path / "a.gguf")
    batch = [prompt[:12] for prompt in BATCH[:2]]  # Triton's interpreter takes long
    found = (load(folder, ops, keeps=True, batch=batch)[0] for ops in (TritonOps(), TorchOps()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-4)


def test_a_damaged_scale_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, "qwen3", MIXES["Q4_0"])
    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == "blk.1.ffn_down.weight")
    with path.open("r+b") as file:
        file.seek(int(tensor.data_offset) + 18)
        file.write(np.float16(np.nan).tobytes())
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_down\.weight.*scale"):
        load(gguf_folder(path), TorchOps(), keeps=True)
