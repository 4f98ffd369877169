"""gpt-oss with MXFP4 experts, as published: logits of transformers with the same numbers, and products with codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from chairlift import LLM
from chairlift.model.loading.model_building import load_model
from support_batches import teacher_forced_logits
from support_models import save_tiny, tiny_hf_model
from support_native import need_native

IDS = [(7 * place) % 290 + 8 for place in range(40)]


def write(folder: Path) -> Any:
    """Save a model whose experts are MXFP4; return transformers' model of the same numbers in float64."""
    save_tiny("gpt_oss", folder)
    model, tensors = tiny_hf_model("gpt_oss", dtype=torch.float64), load_file(folder / "model.safetensors")
    dice = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=dice, dtype=torch.uint8)
        scales = torch.randint(121, 124, (experts, outputs, inputs // 32), generator=dice, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        numbers = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        model.get_parameter(name).data.copy_(numbers)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    content = json.loads((folder / "config.json").read_text())
    entry = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps({**content, "quantization_config": entry}))
    return model


def test_logits_are_those_of_the_same_numbers(tmp_path: Path) -> None:
    model = write(tmp_path)
    loaded, _ = load_model(tmp_path, dtype="float64", device=torch.device("cpu"), max_model_len=None)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    found = teacher_forced_logits(loaded, [IDS], torch.float64, max_chunk=16)[0]
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize("quantization", ["auto", "none"])
def test_the_native_kernels_run_it_with_its_codes_or_dequantized(quantization: str, tmp_path: Path) -> None:
    need_native()
    write(tmp_path)
    with LLM(tmp_path, dtype="bfloat16", num_blocks=50, quantization=quantization) as llm:
        report = llm.startup_report
        assert len(llm.generate([IDS], use_tqdm=False)[0].outputs[0].token_ids) > 0
    assert "native" in report["kernels"]
    assert ("MXFP4" in str(report)) is (quantization == "auto")
