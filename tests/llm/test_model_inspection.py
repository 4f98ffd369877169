"""read_model_sizes: sizes and problems of a model, loadable or not; resolve_dtype_option: stored or own dtype."""

import json
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.model_inspection import read_model_sizes, resolve_dtype_option
from support_gguf_models import write_gguf


def test_the_sizes_of_a_model_are_read_whether_or_not_it_is_loaded(tmp_path: Path) -> None:
    demo_sizes = read_model_sizes(None)
    assert demo_sizes.config is not None and demo_sizes.config["num_layers"] > 0 and demo_sizes.problems == ()
    content = dict(demo_sizes.content) | {"quantization_config": {"quant_method": "quip"}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    quantized = read_model_sizes(str(tmp_path))
    assert quantized.config == demo_sizes.config and ["with quip" in problem for problem in quantized.problems] == [
        True
    ]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OtherForCausalLM"]}))
    other = read_model_sizes(str(tmp_path))
    assert other.config is None and "OtherForCausalLM" in other.problems[0]
    with pytest.raises(ConfigError, match="chairlift:random has no config"):
        read_model_sizes(RANDOM)


def test_a_dtype_option_is_the_stored_one_or_its_own() -> None:
    assert resolve_dtype_option("auto", "float16") == "float16" and resolve_dtype_option("bf16", None) == "bfloat16"
    assert resolve_dtype_option("auto", None) == "float32"


def test_a_gguf_file_has_the_bits_of_its_tensors(tmp_path: Path) -> None:
    types = {"token_embd": "Q8_0", "output": "Q6_K", "attn_k": "F16"}
    write_gguf(tmp_path / "a.gguf", "qwen3", lambda name: types.get(name.split(".")[-2], "Q4_0"),
               tie_word_embeddings=False)  # fmt: skip
    sizes = read_model_sizes(str(tmp_path / "a.gguf"))
    entry = sizes.content["quantization_config"]
    keys, others = 128 * 256, (3 * 256 + 2 * 256 + 128) * 256  # q, k, v, output and the MLP have widths of 64 * heads
    assert (entry["quant_method"], entry["table_bits"], entry["head_bits"]) == ("gguf", 8.5, 6.5625)
    assert entry["bits"] == pytest.approx((16 * keys + 4.5 * others) / (keys + others)) and not sizes.problems
    write_gguf(tmp_path / "b.gguf", "qwen3", lambda name: "Q5_0", tie_word_embeddings=True)
    tied = read_model_sizes(str(tmp_path / "b.gguf")).content["quantization_config"]
    assert tied == {"quant_method": "gguf", "bits": 5.5, "table_bits": 5.5, "head_bits": 5.5}
