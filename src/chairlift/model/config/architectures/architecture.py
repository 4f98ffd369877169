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
from chairlift.model.config.gguf_metadata_reader import GGUFMetadataReader

TEXT_WRAPPER_PREFIXES = (
    "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
)  # fmt: skip
"""Architecture.ignored_prefixes of wrappers that most multimodal models have."""


@dataclass(frozen=True, slots=True)
class GGUFContents:
    """What GGUFArchitecture.read_fields takes.

    Attributes:
        read: keys of the architecture.
        shapes: of the tensors, outermost dimension first.
        fields: of config.json that are read in the same way for all architectures.
    """

    read: GGUFMetadataReader
    shapes: Mapping[str, tuple[int, ...]]
    fields: Mapping[str, Any]

    def check_shape(self, key: str, end: str, *expected: int) -> None:
        """Raise ModelError, which names `key`, unless each tensor `blk.N.{end}.weight` has the expected shape.

        So sizes are checked before lists of as many rows are made.
        """
        for name, shape in self.shapes.items():
            if name.startswith("blk.") and name.endswith(f".{end}.weight") and shape != expected:
                raise self.read.invalid(key, f"requires shape {expected} of tensor {name}, which has {shape}")


@dataclass(frozen=True, slots=True)
class FileOrder:
    """Where a matrix, or a vector of one row for each element, is in a file.

    Attributes:
        rows: index in the file of each row of the model; None for the same order.
        columns: the same for columns.
    """

    rows: Sequence[int] | None = None
    columns: Sequence[int] | None = None


def no_more_fields(contents: GGUFContents) -> Mapping[str, Any]:
    """Return no field (GGUFArchitecture.read_fields)."""
    return {}


def same_order(fields: Mapping[str, Any], name: str) -> FileOrder:
    """Say that a file has the rows and columns of the model (GGUFArchitecture.order)."""
    return FileOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFArchitecture:
    """One value of `general.architecture` in GGUF files.

    Attributes:
        name: the value, which also begins the architecture's keys.
        architecture: name of the class in config.json.
        model_type: field of config.json.
        layer_names: module of a layer in canonical names -> its name behind `blk.N.` in the file; the first one is in
            every layer.
        layer_tensors: the same for single tensors, with what follows the module's name.
        model_names: names of tensors outside of layers that differ from Llama's.
        has_paired_rows: whether rows 2i and 2i + 1 of a query or key head rotate together; see head_order.
        order: takes the fields of config.json and a canonical name, and returns where rows and columns are.
        norm_offset: is added to the weights of norms in the file.
        has_output_bias: whether biases of attention include one on the projection after attention.
        full_layer_period: of layers with a sliding window every n-th is full; None if all layers are alike.
        has_window: whether all layers may have a window.
        window_rope_base: base of RoPE of layers with a window in a file without one, 0 for that of the others; None if
            config.json has no field for it.
        has_partial_rotation: whether a part of each head may rotate.
        has_long_rope: whether RoPE may have factors for short and for long sequences.
        state_kind: entry of layer_types for a layer without heads of keys; "" for an architecture without such layers.
        expert_count_field: field of config.json for the number of experts; "" for an architecture without experts.
        expert_size_field: field for the neurons of an expert.
        exceeds_float16: whether activations of its models may be beyond float16.
        has_query_scalar: whether config.json has query_pre_attn_scalar and final_logit_softcapping.
        query_scalar_layers: layers of the one size whose scale of queries comes from hidden_size / heads.
        has_own_scales: whether `read_fields` reads the scales of attention and logits.
        read_fields: returns the fields that only this architecture has, or has in another way.
        fields: further fields of config.json.
    """

    name: str
    architecture: str
    model_type: str
    layer_names: Mapping[str, str]
    layer_tensors: Mapping[str, str] = field(default_factory=dict)
    model_names: Mapping[str, str] = field(default_factory=dict)
    has_paired_rows: bool = False
    order: Callable[[Mapping[str, Any], str], FileOrder] = same_order
    norm_offset: float = 0.0
    has_output_bias: bool = True
    full_layer_period: int | None = None
    has_window: bool = False
    window_rope_base: float | None = None
    has_partial_rotation: bool = False
    has_long_rope: bool = False
    state_kind: str = ""
    expert_count_field: str = ""
    expert_size_field: str = "moe_intermediate_size"
    exceeds_float16: bool = False
    has_query_scalar: bool = False
    query_scalar_layers: int | None = None
    has_own_scales: bool = False
    read_fields: Callable[[GGUFContents], Mapping[str, Any]] = no_more_fields
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
