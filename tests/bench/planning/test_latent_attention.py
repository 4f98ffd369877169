"""latent_attention: its KV cache; test_model_shape.py compares the parameters with built models."""

from chairlift.bench.planning.model_shape import shape_of_content
from support_planning import TINY


def test_the_cache_holds_one_compressed_row_for_all_heads() -> None:
    latent = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    shape = shape_of_content({**TINY, "model_type": "deepseek_v3", **latent})
    assert shape.attention.kv_elements == 32 + 8 and shape.num_kv_heads == 1 and shape.head_dim == 24
    assert shape.attention.pair_width == 4 * (24 + 16)
