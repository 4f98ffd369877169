"""latent_attention: the size of multi-head latent attention, whose KV cache holds one compressed row for all heads.

Source of the parts: DeepSeek-V2 (arXiv 2405.04434), section 2.1, and the field names of its config.json.
"""

from chairlift.bench.planning.config_values import ConfigValues


def latent_attention(values: ConfigValues, hidden: int, heads: int) -> dict[str, int]:
    """Return the fields of AttentionSize. Raises ConfigError for a missing or wrong field."""
    rank, query_rank = values.size("kv_lora_rank"), values.optional_size("q_lora_rank")
    plain, rotated = values.size("qk_nope_head_dim"), values.size("qk_rope_head_dim")
    value_width = values.size("v_head_dim")
    query_outputs = heads * (plain + rotated)
    queries = hidden * query_outputs if query_rank is None else query_rank * (hidden + query_outputs)
    keys = hidden * (rank + rotated) + rank * heads * (plain + value_width)
    bias = values.flag("attention_bias") * ((query_rank or 0) + rank + rotated + hidden)
    return {
        "matrices": queries + keys + heads * value_width * hidden,
        "vectors": rank + (query_rank or 0) + bias,
        "kv_elements": rank + rotated,
        "pair_width": heads * (plain + rotated + value_width),
    }
