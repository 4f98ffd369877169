"""rope_fields: a part of a head, factors of long and short sequences, bases of windows, and what is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.gguf_architectures import GGUF_ARCHITECTURES
from chairlift.model.config.gguf_metadata_reader import GGUFMetadataReader
from chairlift.model.config.gguf_rope import rope_fields
from support_shares import for_each

SIZES = {"head_dim": 16, "max_position_embeddings": 4096}
FACTORS = {"rope_factors_short.weight": [1.0] * 8, "rope_factors_long.weight": [2.0] * 8}


def fields(name: str, values: Mapping[str, Sequence[float]] | None = None, **keys: Any) -> dict[str, Any]:
    metadata = {f"{name}.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
    return rope_fields(GGUFMetadataReader(metadata, name, "a.gguf"), GGUF_ARCHITECTURES[name], SIZES, values or {})


def test_only_some_architectures_rotate_a_part_of_each_head() -> None:
    assert fields("llama", dimension_count=16) == {"rope_theta": 10000.0, "rope_scaling": None}
    assert fields("glm4", dimension_count=8)["partial_rotary_factor"] == 0.5
    assert fields("glm4")["partial_rotary_factor"] == 1.0, "config.json's default is another one"
    with pytest.raises(UnsupportedModel, match=r"llama\.rope\.dimension_count is 8 of 16 dimensions of a head"):
        fields("llama", dimension_count=8)
    with pytest.raises(ModelError, match=r"glm4\.rope\.dimension_count is 18, not an even number up to 16"):
        fields("glm4", dimension_count=18)


@for_each("rotated", range(2, 130, 2))
def test_every_part_comes_back_from_its_share(rotated: int) -> None:
    read = GGUFMetadataReader({"glm4.rope.dimension_count": rotated}, "glm4", "a.gguf")
    sizes = {**SIZES, "head_dim": 130}
    share = rope_fields(read, GGUF_ARCHITECTURES["glm4"], sizes, {})["partial_rotary_factor"]
    assert int(130 * share) == rotated


def test_factors_of_long_sequences_are_a_longrope() -> None:
    found = fields("phi3", FACTORS, scaling__original_context_length=1024, scaling__attn_factor=1.0954451)
    scaling = found["rope_scaling"]
    assert (scaling["short_factor"], scaling["long_factor"]) == ([1.0] * 8, [2.0] * 8)
    assert (scaling["rope_type"], scaling["factor"], found["original_max_position_embeddings"]) == (
        "longrope",
        4.0,
        1024,
    )
    assert scaling["attention_factor"] == pytest.approx(1.2**0.5, abs=1e-15), "not rounded to the file's float32"
    other = fields("phi3", FACTORS, scaling__original_context_length=1024, scaling__attn_factor=1.5)
    assert other["rope_scaling"]["attention_factor"] == 1.5
    with pytest.raises(ModelError, match=r"tensor rope_factors_long\.weight has 0 values for 8 frequencies"):
        fields("phi3", {"rope_factors_short.weight": [1.0] * 8})


def test_layers_with_a_window_have_another_base_where_config_json_has_a_field_for_it() -> None:
    assert fields("gemma3", freq_base=1e6)["rope_local_base_freq"] == 10000.0
    assert fields("olmo2", freq_base=500000.0)["rope_local_base_freq"] == 500000.0
    assert "rope_local_base_freq" not in fields("gemma2", freq_base_swa=10000.0)
    with pytest.raises(
        UnsupportedModel, match=r"gpt-oss\.rope\.freq_base_swa is 10000\.0, rope\.freq_base is 150000\.0"
    ):
        fields("gpt-oss", freq_base=150000.0, freq_base_swa=10000.0)
