"""OLMO3: OLMo 2 with a window in three of four layers; scaling of RoPE applies to the others.

Source: transformers 5.23 models/olmo3.
"""

from chairlift.model.config.architectures.architecture import Architecture
from chairlift.model.config.architectures.decoder_fields import layer_windows
from chairlift.model.config.architectures.olmo2 import OLMO_DEFAULTS, olmo_config
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.rope_config import read_ropes


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    full, sliding = read_ropes(fields, fields.size("max_position_embeddings"), by_layer_type=True)
    windows = layer_windows(fields, lambda layer: (layer + 1) % 4 != 0)
    return olmo_config(architecture, fields, windows, rope=full, sliding_rope=sliding)


OLMO3 = Architecture(
    names=("Olmo3ForCausalLM",),
    models="OLMo 3",
    defaults={**OLMO_DEFAULTS, "sliding_window": 4096, "rope_theta": 500000.0, "rope_local_base_freq": 500000.0},
    read_config=_read_config,
)
