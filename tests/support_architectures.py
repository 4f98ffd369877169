"""config_of, assert_parameters: a tiny config of transformers as Chairlift reads it, and the parameters of both."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import DenseOnly, StoredWeight
from support_models import VARIANTS, tiny_config


@dataclass(frozen=True, slots=True)
class StoredTensor(DenseOnly):
    """A StoredWeight in memory."""

    name: str
    tensor: torch.Tensor
    file: Path = Path("model.safetensors")
    dtype: str = "F32"
    dense_dtype: str | None = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self.tensor if part is None else self.tensor[part]


def config_of(kind: str, **changes: Any) -> DecoderConfig:
    """Read the config of a kind (a key of VARIANTS), with some fields of config.json changed."""
    config = tiny_config(kind, architectures=[VARIANTS[kind][1]])
    return parse_decoder_config({**json.loads(config.to_json_string()), **changes})


def assert_parameters(kind: str) -> None:
    """Assert that every parameter of transformers' model is one of ours, or a joined one of which ours are rows."""
    config = tiny_config(kind, architectures=[VARIANTS[kind][1]])
    with torch.device("meta"):
        model = getattr(transformers, VARIANTS[kind][1])(config)
    saved = model.state_dict()
    stored: dict[str, StoredWeight] = {
        name: StoredTensor(name, parameter)
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]
        if name in saved
    }
    ours = parameter_shapes(config_of(kind))
    checkpoint = Checkpoint(stored)
    checkpoint.arrange(config_of(kind), ours)
    assert {name: weight.shape for name, weight in checkpoint.tensors.items()} == ours


def assert_defaults(config_class: str, architecture: str, **said: Any) -> None:
    """Assert that what config.json leaves out is what transformers' config class takes."""
    theirs = getattr(transformers, config_class)(**said)
    ours = parse_decoder_config({**said, "architectures": [architecture]})
    assert ours == parse_decoder_config({**json.loads(theirs.to_json_string()), "architectures": [architecture]})
    assert (ours.num_kv_heads, ours.norm_eps) == (theirs.num_key_value_heads, theirs.rms_norm_eps)
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    ends = [] if theirs.eos_token_id is None else theirs.eos_token_id
    assert ours.eos_token_ids == (tuple(ends) if isinstance(ends, list) else (ends,))
