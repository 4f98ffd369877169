"""ExpertsConfig, ExpertFields, read_experts: a mixture of experts as config.json describes it. Imports no torch.

    architectures                    scores              chosen by                  factors of the k outputs
    Mixtral, Qwen, OLMoE             softmax over all    score                      scores; divided by their sum, or not
    gpt-oss, Granite                 logits              logit                      softmax over the k
    DeepSeek V3, GLM-4.5             sigmoid             score + bias, by groups    scores, divided by their sum, scaled
    LFM2                             sigmoid             score + bias               the same
    Gemma 4                          softmax over all    score                      the same, by a factor of each expert

Sources: the routers of transformers 5. A tie is broken by the lower index of the expert.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from chairlift.core.errors import ConfigError, ModelError
from chairlift.model.config.activations import ACTIVATIONS, OTHER_ACTIVATIONS
from chairlift.model.config.config_reader import ConfigReader, invalid_field
from chairlift.model.config.rope_config import lacking_feature

CLAMPED_SWIGLU = "clamped_swiglu"
"""gpt-oss's activation: (up + 1) * gate * sigmoid(1.702 * gate), where gate is at most 7 and up within -7 and 7."""

SWIGLU_LIMIT, SWIGLU_SLOPE = 7.0, 1.702

SOFTMAX, TOP_SOFTMAX, SIGMOID = "softmax", "top_softmax", "sigmoid"
"""How logits become factors: softmax over all experts, softmax over the chosen ones, or the sigmoid of each."""

_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts; files of one architecture may have one or another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRouterConfig:
    """How a router chooses a row's experts, and the factors of their outputs.

    Attributes:
        num_experts, experts_per_token: numbers of all experts, and of those that a row is sent to.
        scoring: SOFTMAX, TOP_SOFTMAX or SIGMOID.
        float32: what is float32 also in a float64 model, as in transformers: "product" (with all that follows),
            "scores", or "" for nothing.
        renormalizes: whether the chosen scores are divided by their sum.
        sum_offset: added to that sum.
        scaling_factor: of all factors.
        has_bias: whether the logits have a bias.
        has_correction_bias: whether a bias is added to the scores by which experts are chosen, and to nothing else.
        num_groups, groups_per_token: equal groups of neighbouring experts, and those whose experts a row may be sent
            to: the ones with the largest sum of the two best scores.
        norm_eps: of an RMS norm of the router's input, with a scale for each input and a factor for each expert;
            None for an input as it is.
    """

    num_experts: int
    experts_per_token: int
    scoring: str
    float32: str
    renormalizes: bool = False
    sum_offset: float = 0.0
    scaling_factor: float = 1.0
    has_bias: bool = False
    has_correction_bias: bool = False
    num_groups: int = 1
    groups_per_token: int = 1
    norm_eps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A layer of experts.

    Attributes:
        router: how a row's experts are chosen.
        intermediate_size: neurons of an expert.
        activation: of the gates, one of ACTIVATIONS or CLAMPED_SWIGLU.
        has_bias: whether the projections of experts have biases.
        shared_size: neurons of the expert that every row is sent to; 0 without one.
        has_shared_gate: whether its output is multiplied by the sigmoid of one more logit.
    """

    router: ExpertRouterConfig
    intermediate_size: int
    activation: str
    has_bias: bool = False
    shared_size: int = 0
    has_shared_gate: bool = False

    def of_ranks(self, num_ranks: int) -> "ExpertsConfig":
        """Return the sizes of one of several ranks, each of which has a part of the neurons of every expert."""
        sizes = {"intermediate_size": self.intermediate_size, "neurons of the shared expert": self.shared_size}
        for name, size in sizes.items():
            if size % num_ranks:
                raise ConfigError(
                    f"tensor_parallel_size is {num_ranks}, but {name} {size} of the experts cannot be shared evenly",
                    option="tensor_parallel_size",
                )
        return replace(
            self, intermediate_size=self.intermediate_size // num_ranks, shared_size=self.shared_size // num_ranks
        )


def renormalized_softmax(router: ExpertRouterConfig, fields: ConfigReader) -> ExpertRouterConfig:
    """Return a router whose scores are divided by their sum unless norm_topk_prob is false (ExpertFields.router)."""
    # Mixtral and Qwen3.5 have no such field and always divide.
    return replace(router, renormalizes=fields.flag_or("norm_topk_prob", True))


def softmax_of_chosen(router: ExpertRouterConfig, fields: ConfigReader) -> ExpertRouterConfig:
    """Return a router with a softmax over the chosen experts (ExpertFields.router)."""
    return replace(router, scoring=TOP_SOFTMAX, renormalizes=False)


def named_activation(fields: ConfigReader, name: str = "hidden_act") -> str:
    """Return the activation that a field names (ExpertFields.activation)."""
    if fields.get(name) in OTHER_ACTIVATIONS:
        raise lacking_feature(f"{name} {fields.get(name)!r} is not supported; supported are {', '.join(ACTIVATIONS)}")
    return fields.choice(name, ACTIVATIONS)


def no_shared_expert(fields: ConfigReader) -> int:
    """Return the neurons of a shared expert that does not exist (ExpertFields.shared_size)."""
    return 0


def in_all_layers(fields: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """Say that every layer has experts (ExpertFields.sparse_layers)."""
    return (True,) * num_layers


def in_every_nth_layer(fields: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """Say which layers decoder_sparse_step and mlp_only_layers give experts (ExpertFields.sparse_layers)."""
    dense, step = fields.raw("mlp_only_layers") or (), fields.size("decoder_sparse_step")
    if not isinstance(dense, list | tuple):
        raise invalid_field("mlp_only_layers", "must be a list of numbers of layers")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFields:
    """How the config.json and the checkpoints of an architecture describe experts.

    Attributes:
        defaults: transformers' defaults of the fields of config.json.
        enabled_by: field that says whether a model has experts; "" where all have.
        per_token: field for the number of experts of a token.
        size: field for the neurons of an expert.
        router: takes the router of a softmax over all experts, and the fields, and returns the architecture's.
        activation: returns the activation of the gates.
        has_bias: whether the projections of experts have biases.
        shared_size: returns the neurons of the expert that every row is sent to; 0 without one.
        has_shared_gate: whether its output is multiplied by the sigmoid of one more logit.
        sparse_layers: takes the fields and the number of layers, and returns for each whether it has experts.
        renamed: regular expressions in names of tensors, and what takes their place in canonical names, in order.
        alternates: whether gates and ups alternate in stacked tensors, in which inputs come before outputs.
    """

    defaults: Mapping[str, Any]
    enabled_by: str = ""
    per_token: str = "num_experts_per_tok"
    size: str = "moe_intermediate_size"
    router: Callable[[ExpertRouterConfig, ConfigReader], ExpertRouterConfig] = renormalized_softmax
    activation: Callable[[ConfigReader], str] = named_activation
    has_bias: bool = False
    shared_size: Callable[[ConfigReader], int] = no_shared_expert
    has_shared_gate: bool = False
    sparse_layers: Callable[[ConfigReader, int], tuple[bool, ...]] = in_all_layers
    renamed: tuple[tuple[str, str], ...] = ()
    alternates: bool = False


def read_experts(experts: ExpertFields, fields: ConfigReader) -> ExpertsConfig | None:
    """Return the experts of an architecture; None for a model of it that has none.

    The reader must have the defaults of `experts`. Raises ModelError and UnsupportedArchitecture.
    """
    if experts.enabled_by and not fields.flag(experts.enabled_by):
        return None
    # A value of the file goes before the default of another name.
    count_name = next((name for name in _NUM_EXPERTS if fields.raw(name) is not None), None)
    count_name = count_name or next((name for name in _NUM_EXPERTS if name in fields), _NUM_EXPERTS[0])
    num_experts = fields.count(count_name)
    if num_experts == 0:
        return None
    shared_size, chosen = experts.shared_size(fields), fields.size(experts.per_token)
    if chosen > num_experts:
        raise ModelError(f"config.json: {chosen} experts for each token, but there are {num_experts}")
    router = ExpertRouterConfig(
        num_experts=num_experts, experts_per_token=chosen, scoring=SOFTMAX, float32="scores", renormalizes=True
    )
    return ExpertsConfig(
        router=experts.router(router, fields),
        intermediate_size=fields.size(experts.size),
        activation=experts.activation(fields),
        has_bias=experts.has_bias,
        shared_size=shared_size,
        has_shared_gate=experts.has_shared_gate,
    )
