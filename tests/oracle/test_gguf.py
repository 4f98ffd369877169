"""Models of GGUF files in float64: logits of transformers' model with the numbers of gguf's dequantizer."""

from pathlib import Path

import pytest
import torch

from chairlift.model.config.gguf_folder import gguf_folder
from support_dense_logits import assert_equal_logits
from support_gguf_models import MIXES, q4_k_m, write_gguf

CPU = torch.device("cpu")


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
