"""AdaptedLinear: a projection to whose outputs the adapters of a step's rows add their products.

    x ─┬─ W ─────────────────(+)─ bias ─
       └─ A ─ B · scale (rows)┘  · gain

A row without an adapter has the output of the projection alone, with the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.layers.ops import Ops
from chairlift.model.lora.adapter_weights import LowRank
from chairlift.model.lora.row_adapters import RowAdapters

PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True)
class AdaptedLinear(Linear):
    """A projection with the products of adapters.

    Attributes:
        adapters: those of the model, and the rows of each.
    """

    adapters: RowAdapters

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """Project x [T, I] to [T, O]."""
        out = Linear.__call__(self, x, ops)
        for weights, rows in self.adapters.segments:
            start = 0
            for name, count in self.outputs.items():
                if (part := weights.projections.get(name)) is not None:
                    self._add(out, x, rows, part, slice(start, start + count), ops)
                start += count
        return out

    def _add(self, out: Tensor, x: Tensor, rows: Tensor, part: LowRank, columns: slice, ops: Ops) -> None:
        """Add the product of one adapter to some columns of its rows."""
        own = x.index_select(0, rows)
        added = low_rank_product(own, part, ops)
        if part.gain is None:
            total = out[rows, columns] + added
        else:
            # The gain is of the product without the bias.
            product = ops.linear(own, self.weight, None)[:, columns]
            total = part.gain * (product + added)
            if self.bias is not None:
                total = total + self.bias[columns]
        out[rows, columns] = total.to(out.dtype)


def low_rank_product(x: Tensor, part: LowRank, ops: Ops) -> Tensor:
    """Return scale * B (A x) of rows x [n, I]: [n, O], in the dtype of A."""
    return ops.linear(ops.linear(x.to(part.a.dtype), part.a, None), part.b, None) * part.scale


def adapt_linears(part: PartT, adapters: RowAdapters) -> PartT:
    """Return a part of a decoder with an AdaptedLinear in the place of each Linear in it, at any depth."""

    def adapt(linear: Linear) -> Linear:
        return AdaptedLinear(linear.weight, linear.bias, linear.outputs, adapters)

    replaced: PartT = _replace_linears(part, adapt)
    return replaced


def adaptable_projections(part: Any) -> dict[str, tuple[int, int]]:
    """Return the canonical names of all projections in a part of a decoder, with their outputs and inputs."""
    found: dict[str, tuple[int, int]] = {}

    def record(linear: Linear) -> Linear:
        found.update({name: (count, linear.weight.shape[1]) for name, count in linear.outputs.items()})
        return linear

    _replace_linears(part, record)
    return found


def _replace_linears(value: Any, make: Callable[[Linear], Linear]) -> Any:
    if isinstance(value, Linear):
        return make(value)
    if isinstance(value, list | tuple) and any(is_dataclass(each) for each in value):
        return type(value)(_replace_linears(each, make) for each in value)
    if not is_dataclass(value) or isinstance(value, type | torch.Tensor):
        return value
    changed = {}
    for each in fields(value):
        old = getattr(value, each.name)
        if (new := _replace_linears(old, make)) is not old:
            changed[each.name] = new
    return replace(value, **changed) if changed else value
