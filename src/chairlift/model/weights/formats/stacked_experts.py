"""canonical_experts, WeightSlice: the experts of a checkpoint, one by one, however it names and stores them.

    in files                                                  canonical, with N for each expert
    block_sparse_moe.experts.N.{w1,w3,w2}.weight              mlp.experts.N.{gate,up,down}_proj.weight        Mixtral
    feed_forward.experts.N.{w1,w3,w2}.weight                  the same                                        LFM2
    block_sparse_moe.{input,output}_linear.weight             [E, 2 I, H] and [E, H, I]                       Granite
    mlp.experts.gate_up_proj, mlp.experts.down_proj           the same                                        Qwen3.5
    experts.gate_up_proj, experts.down_proj                   the same                                        Gemma 4
    mlp.experts.gate_up_proj, ..._bias, down_proj, ..._bias   [E, H, 2 I], gates and ups alternate; [E, I, H] gpt-oss
    mlp.experts.gate_up_proj_blocks, ..._scales, down_proj_.. [E, 2 I, H] in MXFP4 (mxfp4.py)                 gpt-oss
    router.*, router.layer.*, expert_bias                     mlp.gate.*
    shared_mlp.{input,output}_linear.weight, shared_experts   mlp.shared_expert.{gate,up,down}_proj.weight

A slice of a stacked tensor reads no more of the file than its expert.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.config.experts_config import ExpertFields
from chairlift.model.weights.formats.mxfp4 import mxfp4_experts
from chairlift.model.weights.shard import Part
from chairlift.model.weights.stored_weight import DenseOnly, PartOfWeight, StoredWeight, damaged

_W = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}

_NUMBERED = re.compile(r"(.*\.mlp(?:\.experts\.\d+)?)\.(w[123])\.(.*)")
_STACKED = re.compile(r"(.*\.mlp\.experts)\.(gate_up|down)_proj(_bias|\.bias|\.weight)?")
_MXFP4 = re.compile(r"(.*\.mlp\.experts)\.(gate_up|down)_proj_(blocks|scales)")
_JOINED = re.compile(r"(.*\.mlp\.shared_expert)\.gate_up_proj\.weight")


@dataclass(frozen=True, slots=True)
class WeightSlice(PartOfWeight, DenseOnly):
    """A StoredWeight (stored_weight.py): a matrix or a vector that is a part of another one.

    Attributes:
        whole: the stored tensor.
        index: of the part along its first axis; None if that axis is the outputs'.
        rows: outputs of the part: a start, a stop and a step.
        is_transposed: whether inputs come before outputs.
    """

    whole: StoredWeight
    index: int | None
    rows: range
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """See StoredWeight."""
        axes = self.whole.shape[self.index is not None :]
        inputs = () if len(axes) == 1 else (axes[0 if self.is_transposed else 1],)
        return len(self.rows), *inputs

    def dense(self, part: Part | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """See StoredWeight."""
        own, *inputs = (slice(0, size) for size in self.shape) if part is None else part
        rows = self.rows[own]
        axes = [slice(rows[0], rows[-1] + 1), *inputs]
        first = [] if self.index is None else [slice(self.index, self.index + 1)]
        found = self.whole.dense((*first, *(axes[::-1] if self.is_transposed else axes)), dtype)
        if first:
            found = found[0]
        if self.is_transposed and inputs:
            found = found.T
        return found[:: rows.step]


def canonical_experts(
    experts: ExpertFields, weights: Iterable[tuple[str, StoredWeight]]
) -> Iterator[tuple[str, StoredWeight]]:
    """Yield the weights of a checkpoint with canonical names, and stacked experts one by one.

    Weights of other layers pass as they are. Raises ModelError for a stacked tensor without the right axes, and for one
    of MXFP4's two tensors without the other.
    """
    unpaired: dict[tuple[str, str], dict[str, StoredWeight]] = {}
    compiled = [(re.compile(pattern), to) for pattern, to in experts.renamed]
    for stored_name, stored in weights:
        name = stored_name
        for pattern, to in compiled:
            name = pattern.sub(to, name)
        if (found := _NUMBERED.fullmatch(name)) is not None:
            yield f"{found[1]}.{_W[found[2]]}.{found[3]}", stored
        elif (found := _STACKED.fullmatch(name)) is not None:
            kind = "bias" if (found[3] or "").endswith("bias") else "weight"
            yield from _experts(found[1], found[2], kind, stored, experts.alternates)
        elif (found := _MXFP4.fullmatch(name)) is not None:
            place = found[1], found[2]
            unpaired.setdefault(place, {})[found[3]] = stored
            if len(unpaired[place]) == 2:
                yield from _mxfp4(place, unpaired.pop(place))
        elif (found := _JOINED.fullmatch(name)) is not None:
            if len(stored.shape) != 2:
                raise damaged(stored, f"has shape {stored.shape}, a joined projection requires 2 axes")
            for part, rows in _gate_up_rows(stored, stored.shape[0], alternates=False):
                yield f"{found[1]}.{part}_proj.weight", WeightSlice(stored, None, rows)
        else:
            yield name, stored
    for pair in unpaired.values():
        kind, stored = next(iter(pair.items()))
        raise damaged(stored, f"has no {'scales' if kind == 'blocks' else 'blocks'}")


def _mxfp4(place: tuple[str, str], pair: dict[str, StoredWeight]) -> Iterator[tuple[str, StoredWeight]]:
    """Yield gpt-oss's experts of one projection."""
    (prefix, projection), blocks = place, pair["blocks"]
    outputs = blocks.shape[1] if len(blocks.shape) > 1 else 0
    parts = [("down", range(outputs))]
    if projection == "gate_up":
        parts = _gate_up_rows(blocks, outputs, alternates=True)
    for index, part, weight in mxfp4_experts(blocks, pair["scales"], parts):
        yield f"{prefix}.{index}.{part}_proj.weight", weight


def _experts(
    prefix: str, projection: str, kind: str, stored: StoredWeight, alternates: bool
) -> Iterator[tuple[str, StoredWeight]]:
    """Yield the parts of a tensor [E, ...] of all experts."""
    num_axes = 3 if kind == "weight" else 2
    if len(stored.shape) != num_axes:
        raise damaged(stored, f"has shape {stored.shape}, stacked experts require {num_axes} axes")
    is_transposed = alternates and kind == "weight"
    outputs = stored.shape[2 if is_transposed else 1]
    parts = [("down", range(outputs))]
    if projection == "gate_up":
        parts = _gate_up_rows(stored, outputs, alternates=alternates)
    for index in range(stored.shape[0]):
        for part, rows in parts:
            yield f"{prefix}.{index}.{part}_proj.{kind}", WeightSlice(stored, index, rows, is_transposed)


def _gate_up_rows(stored: StoredWeight, outputs: int, *, alternates: bool) -> list[tuple[str, range]]:
    """Return the outputs of gates and of ups: one after the other, or in halves."""
    if outputs % 2:
        raise damaged(stored, f"has shape {stored.shape}, gates and ups require an even number of outputs")
    if alternates:
        return [("gate", range(0, outputs, 2)), ("up", range(1, outputs, 2))]
    return [("gate", range(outputs // 2)), ("up", range(outputs // 2, outputs))]
