"""Models of GGUF files in float64: logits of transformers' model with the numbers of gguf's dequantizer."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chairlift.model.config.gguf_folder import gguf_folder
from support_dense_logits import assert_equal_logits
from support_gguf_models import write_gguf

CPU = torch.device("cpu")


def q4_k_m(name: str) -> str:
    """Return the types of a Q4_K_M file: values and down projections differ by layer, and the table is Q6_K."""
    if name == "token_embd.weight" or (name.startswith("blk.0") and ("attn_v" in name or "ffn_down" in name)):
        return "Q6_K"
    return {"attn_k": "Q5_K", "ffn_up": "Q5_0", "attn_output": "IQ4_XS"}.get(name.split(".")[-2], "Q4_K")


MIXES: dict[str, Callable[[str], str]] = {
    **{name: lambda _, name=name: name for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_1", "F16", "BF16", "F32")},  # type: ignore[misc]
    "Q4_K_M": q4_k_m, "Q6_K tied": lambda name: "Q6_K" if name == "token_embd.weight" else "Q8_0",
}  # fmt: skip


@pytest.mark.share(8)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("kind", ["llama", "llama-bias", "mistral-full", "qwen2", "qwen3", "gemma3"])
def test_logits_are_those_of_the_numbers_in_the_file(kind: str, mix: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES[mix], tie_word_embeddings="tied" in mix or kind == "gemma3")
    assert_equal_logits(gguf_folder(tmp_path / "a.gguf"), model)


@pytest.mark.parametrize("kind", ["llama-llama3", "llama-yarn", "llama-linear"])
def test_rotations_of_long_contexts_are_those_of_the_original(kind: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES["Q8_0"])
    assert_equal_logits(gguf_folder(tmp_path / "a.gguf"), model)


@pytest.mark.parametrize("named", [1, 3])
def test_a_model_in_three_files(named: int, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", "llama", q4_k_m, num_files=3)
    assert len(list(tmp_path.glob("*.gguf"))) == 3
    assert_equal_logits(gguf_folder(tmp_path / f"a-0000{named}-of-00003.gguf"), model)
