"""LayerMLP: the MLP of a layer, dense or a mixture of experts, with the fields that published models name them by."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chairlift.bench.planning.config_values import ConfigValues

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMLP:
    """The MLP of one layer, in elements.

    Attributes:
        matrices: weights of its projections, of all experts together.
        vectors: biases and the router.
        num_experts: 0 for a dense layer.
        num_chosen: experts that one token uses.
        expert: weights of one of these experts.
    """

    matrices: int
    vectors: int = 0
    num_experts: int = 0
    num_chosen: int = 0
    expert: int = 0

    @property
    def active_matrices(self) -> int:
        """Weights of the projections that one token is multiplied with."""
        return self.matrices - (self.num_experts - self.num_chosen) * self.expert


def layer_mlps(values: ConfigValues, hidden: int, layers: int, *, has_bias: bool) -> tuple[LayerMLP, ...]:
    """Return the MLP of each layer; `has_bias` is of a mixture's experts and router.

    Raises ConfigError for a mixture whose fields are missing or wrong.
    """
    inter = values.size("intermediate_size")
    dense = LayerMLP(matrices=3 * hidden * inter, vectors=(2 * inter + hidden) * values.flag("mlp_bias"))
    count_name = next((name for name in EXPERT_COUNTS if name in values), None)
    if count_name is None or values.count(count_name) < 2:
        return (dense,) * layers
    mixture = _mixture(values, hidden, values.size(count_name), has_bias=has_bias)
    return tuple(mixture if _has_experts(values, layer) else dense for layer in range(layers))


def loaded_mlps(config: Mapping[str, Any], hidden: int) -> tuple[LayerMLP, ...]:
    """Return the MLP of each layer, with what a layer makes of its own input, from the loader's DecoderConfig."""
    experts, inputs = config["experts"], config["per_layer_inputs"]
    mixture = LayerMLP(matrices=0) if experts is None else loaded_mixture(experts, hidden)
    vectors = config["has_layer_scalar"] + (0 if inputs is None else hidden)
    matrices = 0 if inputs is None else 2 * hidden * inputs["size"]
    sizes = config["mlp_sizes"] or (config["intermediate_size"],) * config["num_layers"]
    found = []
    for layer, inter in enumerate(sizes):
        dense = LayerMLP(matrices=3 * hidden * inter, vectors=(2 * inter + hidden) * config["mlp_bias"])
        if experts is None or layer in config["dense_layers"]:
            mlp = dense
        elif config["expert_norms"] is None:
            mlp = mixture
        else:
            norms = len(config["expert_norms"]) * hidden
            mlp = replace(
                mixture, matrices=mixture.matrices + dense.matrices, vectors=mixture.vectors + dense.vectors + norms
            )
        found.append(replace(mlp, matrices=mlp.matrices + matrices, vectors=mlp.vectors + vectors))
    return tuple(found)


def loaded_mixture(config: Mapping[str, Any], hidden: int) -> LayerMLP:
    """Return the MLP of a layer of experts, from the fields of the loader's ExpertsConfig."""
    router, inter, shared = config["router"], config["intermediate_size"], config["shared_size"]
    experts = router["num_experts"]
    vectors = experts * (hidden + router["has_bias"] + router["has_correction_bias"])
    vectors += (hidden + experts) * (router["norm_eps"] is not None)
    vectors += hidden * config["has_shared_gate"] + experts * (2 * inter + hidden) * config["has_bias"]
    return LayerMLP(
        matrices=3 * hidden * (experts * inter + shared), vectors=vectors, num_experts=experts,
        num_chosen=router["experts_per_token"], expert=3 * hidden * inter,
    )  # fmt: skip


def _mixture(values: ConfigValues, hidden: int, experts: int, *, has_bias: bool) -> LayerMLP:
    chosen_name = next((name for name in CHOSEN_COUNTS if name in values), CHOSEN_COUNTS[0])
    chosen = values.size(chosen_name)
    values.check(chosen <= experts, f"{chosen_name} is {chosen}, but there are {experts} experts")
    inter = values.size("moe_intermediate_size", values.size("intermediate_size"))
    shared_inter = values.count("shared_expert_intermediate_size")
    has_gate = shared_inter > 0  # a shared expert of Qwen2's kind has a gate, one of DeepSeek's has none
    shared_inter = shared_inter or inter * values.count("n_shared_experts")
    vectors = experts * hidden + has_gate * hidden
    if has_bias:
        vectors += experts * (2 * inter + hidden) + experts
    if values.content.get("topk_method") == "noaux_tc" or values.model_type == "deepseek_v3":
        vectors += experts  # the correction of the router's scores
    expert = 3 * hidden * inter
    return LayerMLP(
        matrices=experts * expert + 3 * hidden * shared_inter, vectors=vectors, num_experts=experts, num_chosen=chosen,
        expert=expert,
    )  # fmt: skip


def _has_experts(values: ConfigValues, layer: int) -> bool:
    """Return whether a layer is a mixture."""
    if layer < values.count("first_k_dense_replace") or layer in (values.list("mlp_only_layers") or ()):
        return False
    every = values.size("decoder_sparse_step", values.size("moe_layer_freq", 1))
    return (layer + 1) % every == 0 if "decoder_sparse_step" in values else layer % every == 0
