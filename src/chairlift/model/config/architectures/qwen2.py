"""QWEN2: Llama's layers with biases on query, key and value, and windows in the last layers where the config has them.

Source: transformers 5.23 models/qwen2.
"""

from chairlift.model.config.architectures.architecture import Architecture, GGUFArchitecture
from chairlift.model.config.architectures.decoder_fields import (
    FULL,
    LLAMA_DEFAULTS,
    LLAMA_GGUF_LAYER,
    SLIDING,
    decoder_config,
    windows_of_kinds,
)
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig

NO_WINDOW = {"use_sliding_window": False, "sliding_window": None}
"""Fields of config.json without windows."""

QWEN2_DEFAULTS = {
    **LLAMA_DEFAULTS, "num_key_value_heads": 32, "max_position_embeddings": 32768, "eos_token_id": None,
    "bos_token_id": None, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip


def qwen_windows(fields: ConfigReader) -> tuple[int | None, ...]:
    """Return layer_windows: the layers from max_window_layers on slide, or those of layer_types."""
    layers, window = fields.size("num_hidden_layers"), fields.size_or_none("sliding_window")
    if not fields.flag("use_sliding_window"):
        window = None
    kinds = fields.names("layer_types")
    if kinds is None:
        first = fields.count("max_window_layers") if window is not None else layers
        kinds = tuple(SLIDING if layer >= first else FULL for layer in range(layers))
    return windows_of_kinds(kinds, window, layers)


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    return decoder_config(architecture, fields, qwen_windows(fields), qkv_bias=True)


QWEN2 = Architecture(
    names=("Qwen2ForCausalLM",),
    models="Qwen2, Qwen2.5",
    defaults=QWEN2_DEFAULTS,
    read_config=_read_config,
    gguf=GGUFArchitecture(
        name="qwen2", architecture="Qwen2ForCausalLM", model_type="qwen2", layer_names=LLAMA_GGUF_LAYER,
        has_output_bias=False, fields={"hidden_act": "silu", **NO_WINDOW},
    ),
)  # fmt: skip
