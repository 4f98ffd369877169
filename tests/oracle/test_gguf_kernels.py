"""Models of GGUF files by the native kernels, which multiply by the codes of the file, against float64."""

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from chairlift.core.errors import ModelError
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.model_loading import load
from support_batches import teacher_forced_logits
from support_gguf_models import MIXES, write_gguf
from support_models import VOCAB_SIZE
from support_native import need_native

rng = random.Random(3)
BATCH = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 18, 70)]


def load_native(file: Path, **options: Any) -> LoadedModel:
    need_native()
    folder = str(gguf_folder(file))
    return load(RunnerConfig(**{"model": folder, "kernels": "native", "device": "cpu", "dtype": "float32", **options}))


def logits(loaded: LoadedModel, batch: list[list[int]], max_chunk: int = 16) -> list[Tensor]:
    assert loaded.attention is not None
    dtype, backend = getattr(torch, loaded.config.dtype), loaded.attention()
    return teacher_forced_logits(loaded.model, batch, dtype, max_chunk=max_chunk, backend=backend)


def error(loaded: LoadedModel, model: Any) -> float:
    """Return the largest error of a sequence's logits, relative to their deviation: sqrt(mean of squares)."""
    errors = []
    for found, ids in zip(logits(loaded, BATCH), BATCH, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0]
        errors.append(float((found - expected).pow(2).mean().sqrt() / expected.std()))
    return max(errors)


@pytest.mark.share(8)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("kind", ["llama", "llama-bias", "qwen2", "qwen3", "gemma3"])
def test_codes_are_multiplied_without_their_numbers(kind: str, mix: str, tmp_path: Path) -> None:
    """Only the inputs of products are rounded, to 8 bits; a matrix or rows in the wrong place have an error of 1."""
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES[mix], tie_word_embeddings="tied" in mix or kind == "gemma3")
    loaded = load_native(tmp_path / "a.gguf")
    has_codes = mix not in ("F32", "F16", "BF16")
    assert (loaded.kept is not None) == has_codes
    assert error(loaded, model) < (0.1 if has_codes else 1e-5)
    dequantized = load_native(tmp_path / "a.gguf", quantization="none")
    assert dequantized.kept is None and error(dequantized, model) < 1e-5


def test_a_request_has_the_same_bits_in_any_batch_and_in_any_chunks(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", MIXES["Q4_K_M"])
    loaded = load_native(tmp_path / "a.gguf")
    together = logits(loaded, BATCH)
    for found, ids in zip(together, BATCH, strict=True):
        assert torch.equal(logits(loaded, [ids], max_chunk=64)[0], found)


def test_numbers_and_codes_are_mixed_in_one_model(tmp_path: Path) -> None:
    """Keys without codes: the whole of q, k and v is dequantized. A pair of gates of two types is, too."""
    types = {"attn_k": "F16", "ffn_up": "Q8_0", "ffn_down": "BF16"}
    model = write_gguf(tmp_path / "a.gguf", "qwen3", lambda name: types.get(name.split(".")[-2], "Q4_0"))
    loaded = load_native(tmp_path / "a.gguf")
    assert loaded.kept is not None and loaded.kept[0] == "Q4_0"
    assert error(loaded, model) < 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_start_reads_packed_codes(dtype: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", MIXES["Q4_K_M"])
    options = {"dtype": dtype, "packed_weights_dir": str(tmp_path / "packed")}
    first = load_native(tmp_path / "a.gguf", **options)
    (packed,) = (tmp_path / "packed").iterdir()
    written = packed.stat().st_mtime_ns
    again = load_native(tmp_path / "a.gguf", **options)
    assert again.kept == first.kept and packed.stat().st_mtime_ns == written
    assert all(torch.equal(one, other) for one, other in zip(logits(first, BATCH), logits(again, BATCH), strict=True))


@pytest.mark.parametrize("parameter", ["token_embd.weight", "blk.0.attn_k.weight", "blk.1.ffn_down.weight"])
def test_a_damaged_scale_ends_in_an_error_that_names_the_tensor(parameter: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, "qwen3", MIXES["Q8_0"])
    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == parameter)
    with path.open("r+b") as file:
        file.seek(int(tensor.data_offset) + 34)  # the scale of the second block
        file.write(np.float16(np.inf).tobytes())
    with pytest.raises(ModelError, match=rf"{parameter}.*scale"):
        load_native(path)
