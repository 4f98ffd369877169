"""Architecture, GGUFArchitecture: the interface of a module in this folder. Imports no torch.

A module reads an architecture's config.json into a DecoderConfig, which says everything about the decoder. One builder
(model/layers/decoder_loading.py) makes the layers of every DecoderConfig.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.experts_config import ExpertFields

TEXT_WRAPPER_PREFIXES = (
    "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
)  # fmt: skip
"""Architecture.ignored_prefixes of wrappers that most multimodal models have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFArchitecture:
    """One value of `general.architecture` in GGUF files.

    Attributes:
        name: the value, which also begins the architecture's keys.
        architecture: name of the class in config.json.
        model_type: field of config.json.
        layer_names: module of a layer in canonical names -> its name behind `blk.N.` in the file.
        has_paired_rows: whether rows 2i and 2i + 1 of a query or key head rotate together; see head_order.
        norm_offset: is added to the weights of norms in the file.
        has_output_bias: whether biases of attention include one on the projection after attention.
        full_layer_period: of layers with a sliding window every n-th is full; None if all layers are full.
        exceeds_float16: whether activations of its models may be beyond float16.
        has_query_scalar: whether config.json has query_pre_attn_scalar and final_logit_softcapping.
        fields: further fields of config.json.
    """

    name: str
    architecture: str
    model_type: str
    layer_names: Mapping[str, str]
    has_paired_rows: bool = False
    norm_offset: float = 0.0
    has_output_bias: bool = True
    full_layer_period: int | None = None
    exceeds_float16: bool = False
    has_query_scalar: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where a checkpoint has a parameter that it stores by another name, or together with others.

    Attributes:
        name: canonical name of what is stored.
        rows: the rows of it that are the parameter, in order; None for all.
    """

    name: str
    rows: Sequence[int] | None = None


def no_source(config: DecoderConfig, name: str) -> None:
    """Return None: every parameter is stored by its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture of Chairlift's own.

    Attributes:
        names: names of its classes in config.json.
        models: published models of it, for people.
        defaults: transformers' defaults of the fields that config.json may omit.
        read_config: takes the name in config.json and the fields, with the defaults; raises ModelError,
            UnsupportedModel, and UnsupportedArchitecture for a feature that only transformers has.
        ignored_prefixes: beginnings of the names of tensors that a multimodal wrapper has beside its text part; empty
            for an architecture without wrappers.
        source: takes a config and the canonical name of a parameter, and returns where it is stored; None where it is
            stored by this name.
        experts: how its files describe experts; None for an architecture without.
        is_unused: takes a config and the canonical name of a tensor, and returns whether files have it although
            the layer does not use it; None for an architecture without such tensors.
        gguf: what GGUF files of it are like; None if they are not supported.
    """

    names: tuple[str, ...]
    models: str
    defaults: Mapping[str, Any]
    read_config: Callable[[str, ConfigReader], DecoderConfig]
    ignored_prefixes: tuple[str, ...] = ()
    source: Callable[[DecoderConfig, str], TensorSource | None] = no_source
    experts: ExpertFields | None = None
    is_unused: Callable[[DecoderConfig, str], bool] | None = None
    gguf: GGUFArchitecture | None = None
