"""ExpertsConfig, read_experts: a mixture of experts as config.json describes it. Imports no torch.

    architectures                    scores              chosen by                  factors of the k outputs
    Mixtral, Qwen, OLMoE             softmax over all    score                      scores; divided by their sum, or not
    gpt-oss, Granite                 logits              logit                      softmax over the k
    DeepSeek V3, GLM-4.5             sigmoid             score + bias, by groups    scores, divided by their sum, scaled
    LFM2                             sigmoid             score + bias               the same
    Gemma 4                          softmax over all    score                      the same, by a factor of each expert

Sources: the routers of transformers 5. A tie is broken by the lower index of the expert.
"""

from collections.abc import Mapping
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

_SHARED = {"shared_expert_intermediate_size": 512, "moe_intermediate_size": 512, "hidden_act": "silu"}
_DEEPSEEK = {
    "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": True, "first_k_dense_replace": 3,
    "hidden_act": "silu",
}  # fmt: skip
_GLM = {
    **_DEEPSEEK, "n_routed_experts": 128, "moe_intermediate_size": 1408, "routed_scaling_factor": 1.0, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_GRANITE = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 11008, "hidden_act": "silu"}
_QWEN3_5 = {**_SHARED, "num_experts": 256, "num_experts_per_tok": 8}
_GEMMA4 = {"hidden_activation": "gelu_pytorch_tanh", "enable_moe_block": False, "rms_norm_eps": 1e-6}

EXPERT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "MixtralForCausalLM": {
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 14336, "hidden_act": "silu",
    },
    "Qwen2MoeForCausalLM": {
        "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "hidden_act": "silu",
        "shared_expert_intermediate_size": 5632, "norm_topk_prob": False, "decoder_sparse_step": 1,
    },
    "Qwen3MoeForCausalLM": {
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "hidden_act": "silu",
        "norm_topk_prob": False, "decoder_sparse_step": 1,
    },
    "OlmoeForCausalLM": {
        "num_experts": 64, "num_experts_per_tok": 8, "intermediate_size": 2048, "hidden_act": "silu",
        "norm_topk_prob": False,
    },
    "Qwen3NextForCausalLM": {
        **_SHARED, "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True, "decoder_sparse_step": 1,
    },
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5,
    "GptOssForCausalLM": {
        "num_local_experts": 128, "num_experts_per_tok": 4, "intermediate_size": 2880, "swiglu_limit": SWIGLU_LIMIT,
        "swiglu_alpha": SWIGLU_SLOPE,
    },
    "GraniteMoeForCausalLM": _GRANITE,
    "GraniteMoeHybridForCausalLM": {**_GRANITE, "shared_intermediate_size": 1024},
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeForCausalLM": _GLM,
    "Glm4MoeLiteForCausalLM": {
        **_GLM, "n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
    },
    "Lfm2MoeForCausalLM": {
        "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "use_expert_bias": True,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0, "num_dense_layers": 2,
    },
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
}  # fmt: skip
"""Architecture -> defaults of transformers for the fields of its experts, for the ConfigReader that is passed."""

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


def read_experts(architecture: str, fields: ConfigReader) -> ExpertsConfig | None:
    """Return the experts of an architecture in EXPERT_DEFAULTS; None for a model of it that has none.

    The reader must have those defaults. Raises ModelError.
    """
    if architecture.startswith("Gemma4") and not fields.flag("enable_moe_block"):
        return None
    # A value of the file goes before the default of another name.
    count_name = next((name for name in _NUM_EXPERTS if fields.raw(name) is not None), None)
    count_name = count_name or next((name for name in _NUM_EXPERTS if name in fields), _NUM_EXPERTS[0])
    num_experts = fields.count(count_name)
    if num_experts == 0:
        return None
    shared_size, has_shared_gate = _shared_expert(architecture, fields)
    size_name = "intermediate_size" if architecture.startswith(_PLAIN_SIZE) else "moe_intermediate_size"
    return ExpertsConfig(
        router=_router(architecture, fields, num_experts),
        intermediate_size=fields.size(size_name),
        activation=_activation(architecture, fields),
        has_bias=architecture == "GptOssForCausalLM",
        shared_size=shared_size,
        has_shared_gate=has_shared_gate,
    )


def sparse_layers(architecture: str, fields: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts; the others have a dense MLP. Raises ModelError."""
    if architecture.startswith("Glm4MoeLite"):
        kinds = fields.names("mlp_layer_types")
        if kinds is None:
            return tuple(layer > 0 for layer in range(num_layers))
        if len(kinds) != num_layers or not set(kinds) <= {"dense", "sparse"}:
            raise invalid_field("mlp_layer_types", f"must be dense or sparse for each of {num_layers} layers")
        return tuple(kind == "sparse" for kind in kinds)
    if architecture.startswith(("DeepseekV3", "Glm4Moe", "Lfm2Moe")):
        name = "num_dense_layers" if architecture.startswith("Lfm2Moe") else "first_k_dense_replace"
        num_dense = fields.count(name)
        return tuple(layer >= num_dense for layer in range(num_layers))
    if architecture.startswith(("Qwen2Moe", "Qwen3Moe", "Qwen3Next")):
        dense, step = fields.raw("mlp_only_layers") or (), fields.size("decoder_sparse_step")
        if not isinstance(dense, list | tuple):
            raise invalid_field("mlp_only_layers", "must be a list of numbers of layers")
        return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))
    return (True,) * num_layers


_PLAIN_SIZE = ("Mixtral", "Olmoe", "GptOss", "Granite")
"""Architectures whose intermediate_size is that of an expert."""


def _router(architecture: str, fields: ConfigReader, num_experts: int) -> ExpertRouterConfig:
    is_gemma = architecture.startswith("Gemma4")
    chosen = fields.size("top_k_experts" if is_gemma else "num_experts_per_tok")
    if chosen > num_experts:
        raise ModelError(f"config.json: {chosen} experts for each token, but there are {num_experts}")
    router = ExpertRouterConfig(
        num_experts=num_experts, experts_per_token=chosen, scoring=SOFTMAX, float32="scores", renormalizes=True
    )
    if architecture.startswith("GptOss"):
        return replace(router, scoring=TOP_SOFTMAX, float32="", renormalizes=False, has_bias=True)
    if architecture.startswith("Granite"):
        return replace(router, scoring=TOP_SOFTMAX, renormalizes=False)
    if architecture.startswith("Lfm2Moe"):
        return replace(
            router, scoring=SIGMOID, float32="", renormalizes=fields.flag("norm_topk_prob"), sum_offset=1e-6,
            scaling_factor=fields.number("routed_scaling_factor"), has_correction_bias=fields.flag("use_expert_bias"),
        )  # fmt: skip
    if architecture.startswith(("DeepseekV3", "Glm4Moe")):
        return _grouped(router, fields)
    if is_gemma:
        return replace(router, norm_eps=fields.number("rms_norm_eps"))
    # Mixtral and Qwen3.5 have no such field and always divide.
    return replace(router, renormalizes=fields.flag_or("norm_topk_prob", True))


def _grouped(router: ExpertRouterConfig, fields: ConfigReader) -> ExpertRouterConfig:
    groups, of_token = fields.size("n_group"), fields.size("topk_group")
    if router.num_experts % groups or of_token > groups:
        raise ModelError(f"config.json: {of_token} of {groups} groups of {router.num_experts} experts")
    if of_token * (router.num_experts // groups) < router.experts_per_token:
        raise ModelError(f"config.json: {of_token} groups have fewer than {router.experts_per_token} experts")
    if groups > 1 and router.num_experts // groups < 2:
        raise ModelError(f"config.json: {groups} groups of {router.num_experts} experts have one expert each")
    return replace(
        router, scoring=SIGMOID, float32="product", renormalizes=fields.flag("norm_topk_prob"), sum_offset=1e-20,
        scaling_factor=fields.number("routed_scaling_factor"), has_correction_bias=True, num_groups=groups,
        groups_per_token=of_token,
    )  # fmt: skip


def _shared_expert(architecture: str, fields: ConfigReader) -> tuple[int, bool]:
    """Return the neurons of the shared expert, and whether it has a gate."""
    if architecture.startswith(("Qwen2Moe", "Qwen3Next", "Qwen3_5Moe")):
        return fields.size("shared_expert_intermediate_size"), True
    if architecture.startswith(("DeepseekV3", "Glm4Moe")):
        return fields.count("n_shared_experts") * fields.size("moe_intermediate_size"), False
    if architecture.startswith("GraniteMoeHybrid"):
        return fields.count("shared_intermediate_size"), False
    return 0, False


def _activation(architecture: str, fields: ConfigReader) -> str:
    if architecture.startswith("GptOss"):
        limit, slope = fields.number("swiglu_limit"), fields.number("swiglu_alpha")
        if (limit, slope) != (SWIGLU_LIMIT, SWIGLU_SLOPE):
            raise lacking_feature(
                f"swiglu_limit {limit} and swiglu_alpha {slope} are not supported; "
                f"supported are {SWIGLU_LIMIT} and {SWIGLU_SLOPE}"
            )
        return CLAMPED_SWIGLU
    if architecture.startswith("Lfm2Moe"):
        return "silu"
    name = "hidden_activation" if architecture.startswith("Gemma4") else "hidden_act"
    if fields.get(name) in OTHER_ACTIVATIONS:
        raise lacking_feature(f"{name} {fields.get(name)!r} is not supported; supported are {', '.join(ACTIVATIONS)}")
    return fields.choice(name, ACTIVATIONS)
