"""ExpertRouter: chooses the experts of each row, and the factors of their outputs.

Where transformers rounds logits to the dtype of a model of 16 bits, so that many are equal, they are float32 here. In a
float64 model the same is float32 as in transformers (ExpertRouterConfig.float32).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from chairlift.model.config.experts_config import SIGMOID, SOFTMAX, TOP_SOFTMAX, ExpertRouterConfig
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.parameter_loader import ParameterLoader


class ChosenExperts(NamedTuple):
    """The k experts of each row, the best first.

    Attributes:
        experts: int64 [T, k].
        factors: of their outputs, float32 or float64 [T, k].
    """

    experts: Tensor
    factors: Tensor


class ExpertRouter:
    """Sends rows to experts.

    Attributes:
        config: what it does.
        weight: [E, H], float32, or float64 in such a model.
        bias: of the logits [E], or None.
        correction_bias: of the scores by which experts are chosen [E], or None.
        input_scale: [H] of a norm of the input, times H ** -0.5; None without a norm.
        expert_scales: factors of the experts [E] with a norm; else None.
    """

    def __init__(
        self, config: ExpertRouterConfig, weight: Tensor, *, bias: Tensor | None = None,
        correction_bias: Tensor | None = None, input_scale: Tensor | None = None, expert_scales: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Store the parameters of the config."""
        assert (bias is not None, correction_bias is not None) == (config.has_bias, config.has_correction_bias)
        assert (input_scale is None) == (expert_scales is None) == (config.norm_eps is None)
        self.config = config
        self.weight, self.bias, self.correction_bias = weight, bias, correction_bias
        self.input_scale, self.expert_scales = input_scale, expert_scales

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: ExpertRouterConfig, hidden: int) -> "ExpertRouter":
        """Load name.weight and what else the config says: bias, e_score_correction_bias, scale, per_expert_scale."""
        count = config.num_experts

        def wide(suffix: str, shape: tuple[int, ...]) -> Tensor:
            own = loader(f"{name}.{suffix}", shape)
            return own if own.dtype == torch.float64 else own.float()

        has_norm = config.norm_eps is not None
        return cls(
            config,
            wide("weight", (count, hidden)),
            bias=wide("bias", (count,)) if config.has_bias else None,
            # The choice depends on small differences of these, which files have in float32.
            correction_bias=loader.float32(f"{name}.e_score_correction_bias", (count,))
            if config.has_correction_bias
            else None,
            input_scale=wide("scale", (hidden,)) * hidden**-0.5 if has_norm else None,
            expert_scales=wide("per_expert_scale", (count,)) if has_norm else None,
        )

    def __call__(self, x: Tensor, ops: Ops) -> ChosenExperts:
        """Choose the experts of rows x [T, H]."""
        config, wide = self.config, self._input(x)
        weight = self.weight
        if config.float32 == "product":
            wide, weight = wide.float(), weight.float()
        logits = ops.linear(wide, weight, self.bias)
        if config.float32 == "scores":
            logits = logits.float()
        if config.scoring == TOP_SOFTMAX:
            top, experts = _best(logits, config.experts_per_token)
            return ChosenExperts(experts, top.softmax(dim=-1))
        assert config.scoring in (SOFTMAX, SIGMOID), config.scoring
        scores = logits.softmax(dim=-1) if config.scoring == SOFTMAX else logits.sigmoid()
        _, experts = _best(self._for_choice(scores), config.experts_per_token)
        factors = scores.gather(1, experts)
        if config.renormalizes:
            factors = factors / (factors.sum(dim=-1, keepdim=True) + config.sum_offset)
        factors = factors * config.scaling_factor
        return ChosenExperts(experts, factors if self.expert_scales is None else factors * self.expert_scales[experts])

    def _input(self, x: Tensor) -> Tensor:
        """Return what the weight multiplies, float32 or float64 [T, H]."""
        wide = x if x.dtype == torch.float64 else x.float()
        if self.config.norm_eps is None:
            return wide
        assert self.input_scale is not None
        rows = x.float()
        normed = rows * torch.pow(rows.pow(2).mean(-1, keepdim=True) + self.config.norm_eps, -0.5)
        return normed.to(wide.dtype) * self.input_scale

    def _for_choice(self, scores: Tensor) -> Tensor:
        """Return the scores [T, E] by which experts are chosen; -inf for those of groups that are not."""
        config = self.config
        if self.correction_bias is not None:
            scores = scores + self.correction_bias
        if config.num_groups == 1:
            return scores
        groups = scores.view(len(scores), config.num_groups, config.num_experts // config.num_groups)
        of_groups = _best(groups.flatten(0, 1), 2)[0].sum(dim=-1).view(len(scores), config.num_groups)
        chosen = torch.zeros_like(of_groups, dtype=torch.bool)
        chosen.scatter_(1, _best(of_groups, config.groups_per_token)[1], torch.ones_like(chosen))
        return groups.masked_fill(~chosen[..., None], -torch.inf).flatten(1)


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest scores of each row [T, count] and their indices; of equal ones the lower index first.

    torch.topk does not say which of equal scores it returns.
    """
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    return ordered[:, :count].contiguous(), order[:, :count].contiguous()
