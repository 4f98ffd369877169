"""Models of AWQ and GPTQ folders in float64: logits of transformers' model with the numbers that the formats mean."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.transformers_config import parse_transformers_config
from chairlift.model.transformers.pretrained import load_pretrained, weights_dtype
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.shard import Shard
from support_bridged_models import bridged_model, save_bridged
from support_dense_logits import assert_equal_logits
from support_models import tiny_hf_model
from support_native_models import load_native, relative_error
from support_quantized import Spec, write_quantized

CPU = torch.device("cpu")

Case = tuple[dict[str, Spec | None], dict[str, Any]]
"""End of a module's name -> how it is packed, "" for all others; and fields of the quantization_config."""

AWQ, V1, V2, ACT_ORDER = (
    lambda: Spec(group_size=16), lambda: Spec(version=1), lambda: Spec(version=2),
    lambda: Spec(version=1, desc_act=True, group_size=16),
)  # fmt: skip

CASES: dict[str, Callable[[], Case]] = {
    "awq": lambda: ({"": AWQ()}, {}),
    "awq not converted": lambda: ({"v_proj": None, "": AWQ()}, {"modules_to_not_convert": ["v_proj"]}),
    "awq rows": lambda: ({"": Spec(group_size=-1, has_zeros=False)}, {}),
    "gptq": lambda: ({"": V1()}, {}),
    "gptq symmetric": lambda: ({"": Spec(version=1, sym=True, has_g_idx=False)}, {}),
    "gptq v2": lambda: ({"": V2()}, {}),
    "gptq act-order": lambda: ({"": ACT_ORDER()}, {}),
    "gptq 8 bits": lambda: ({"": Spec(version=1, bits=8)}, {}),
    "gptq 3 bits": lambda: ({"": Spec(version=1, bits=3)}, {}),
    "gptq 2 bits rows": lambda: ({"": Spec(version=2, bits=2, group_size=-1)}, {}),
    "gptq dynamic": lambda: (
        {"q_proj": None, "down_proj": Spec(version=1, bits=8, group_size=16), "": V1()},
        {"dynamic": {r"-:.*q_proj": {}, r"+:.*down_proj": {"bits": 8, "group_size": 16}}},
    ),
}


def spec_of(specs: dict[str, Spec | None], name: str) -> Spec | None:
    """Return how a module is packed; heads are plain unless they are named."""
    if name == "lm_head":
        return specs.get("lm_head")
    return next(spec for end, spec in specs.items() if name.endswith(end))


def written(folder: Path, model: Any, case: Case) -> Any:
    specs, fields = case
    base = specs[""]
    assert base is not None
    return write_quantized(folder, model, lambda name: spec_of(specs, name), base.config(**fields))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_logits_are_those_of_the_numbers_in_the_folder(kind: str, name: str, tmp_path: Path) -> None:
    assert_equal_logits(tmp_path, written(tmp_path, tiny_hf_model(kind), CASES[name]()))


def test_a_quantized_head(tmp_path: Path) -> None:
    case: Case = ({"lm_head": V1(), "": V1()}, {"lm_head": True})
    model = written(tmp_path, tiny_hf_model("llama"), case)
    assert_equal_logits(tmp_path, model)


@pytest.mark.parametrize("make", [AWQ, ACT_ORDER])
def test_ranks_have_their_parts(make: Callable[[], Spec], tmp_path: Path) -> None:
    """Rows of up_proj, columns of down_proj, and rows of a head whose count the ranks do not divide."""
    model = written(tmp_path, tiny_hf_model("llama"), ({"lm_head": make(), "": make()}, {}))
    checkpoint, whole = Checkpoint.open(tmp_path, "LlamaForCausalLM"), dict(model.named_parameters())
    up, down = (f"model.layers.1.mlp.{name}.weight" for name in ("up_proj", "down_proj"))
    for rank in range(3):
        shard = Shard(rank, 3)
        assert torch.equal(checkpoint.read_part(up, shard, (32, 64)), whole[up][32 * rank : 32 * rank + 32].float())
        assert torch.equal(
            checkpoint.read_part(down, shard, (64, 32)), whole[down][:, 32 * rank : 32 * rank + 32].float()
        )
    rest = checkpoint.read_part("lm_head.weight", Shard(2, 3), (102, 64))
    assert torch.equal(rest[:100], whole["lm_head.weight"][204:].float()) and not rest[100:].any()


def loaded_by_transformers(folder: Path) -> Any:
    shape = parse_transformers_config(json.loads((folder / "config.json").read_text()))
    shape = replace(shape, dtype=weights_dtype(folder, shape, "float64"))
    return load_pretrained(folder, shape, RunnerConfig(model=str(folder)), CPU)


@pytest.mark.parametrize("make", [AWQ, ACT_ORDER])
@pytest.mark.parametrize("kind", ["phi3", "gpt_neox", "starcoder2"])
def test_modules_of_transformers_have_the_same_numbers(kind: str, make: Callable[[], Spec], tmp_path: Path) -> None:
    """Phi-3 and GPT-NeoX have one matrix for queries, keys and values."""
    model = written(tmp_path, bridged_model(kind), ({"": make()}, {}))
    loaded = loaded_by_transformers(tmp_path)
    for name, expected in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], expected), name
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-10)


def test_experts_that_transformers_joins(tmp_path: Path) -> None:
    """A file has the experts one by one, each with its own tensors."""
    plain, packed, spec = tmp_path / "plain", tmp_path / "packed", Spec(version=1, desc_act=True)
    save_bridged("qwen3_moe", plain)
    shutil.copytree(plain, packed)
    numbers, tensors = load_file(plain / "model.safetensors"), load_file(plain / "model.safetensors")
    for name in [name for name in numbers if ".experts." in name]:
        module, layer = name.removesuffix(".weight"), spec.layer(*tensors.pop(name).shape)
        tensors |= {f"{module}.{kind}": tensor for kind, tensor in layer.tensors.items()}
        numbers[name] = layer.dense
    save_file(numbers, plain / "model.safetensors", {"format": "pt"})
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    content = json.loads((packed / "config.json").read_text()) | {"quantization_config": spec.config()}
    (packed / "config.json").write_text(json.dumps(content))
    assert len(tensors) > len(numbers) + 100
    expected, found = (loaded_by_transformers(folder).state_dict() for folder in (plain, packed))
    assert expected.keys() == found.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("awq", "Q4_1"), ("awq rows", "Q4_0"), ("gptq", "Q4_1"), ("gptq symmetric", "Q4_0"), ("gptq 3 bits", "Q4_0"),
     ("gptq 8 bits symmetric", "Q8_0"), ("gptq act-order", None), ("gptq mixed", "Q4_1")],
)  # fmt: skip
def test_native_kernels_multiply_by_the_codes_of_a_folder(name: str, kept: str | None, tmp_path: Path) -> None:
    """Groups of 32 inputs and more; others are dequantized. Overrides by module give a model several kinds."""
    cases: dict[str, Case] = {
        **{name: make() for name, make in CASES.items()}, "awq": ({"": Spec(group_size=32)}, {}),
        "gptq 8 bits symmetric": ({"": Spec(version=1, bits=8, sym=True)}, {}),
        "gptq mixed": (
            {"q_proj": Spec(version=1, bits=8, sym=True), "down_proj": None, "": V1()},
            {"dynamic": {r"-:.*down_proj": {}, r"+:.*q_proj": {"bits": 8, "sym": True}}},
        ),
    }  # fmt: skip
    model = written(tmp_path, tiny_hf_model("llama"), cases[name])
    loaded = load_native(tmp_path)
    assert (None if loaded.kept is None else loaded.kept[0]) == kept
    assert relative_error(loaded, model) < (1e-5 if kept is None else 0.1)
