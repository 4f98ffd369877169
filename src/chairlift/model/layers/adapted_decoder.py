"""AdaptedDecoder: TorchDecoder with adapters, each row with its own."""

from dataclasses import replace

import torch
from torch import Tensor

from chairlift.model.layers.adapted_linear import adapt_linears, adaptable_projections, low_rank_product
from chairlift.model.layers.decoder import DecoderSpec, TorchDecoder
from chairlift.model.layers.ops import Ops
from chairlift.model.lora.adapter_weights import EMBEDDING, LM_HEAD, AdapterWeights
from chairlift.model.lora.row_adapters import Int32, RowAdapters


class AdaptedDecoder(TorchDecoder):
    """A CausalLM that TakesAdapters (layers/causal_lm_protocol.py).

    The numbers of adapters are at least float32, and so are the products with them.

    Attributes:
        adaptable: see TakesAdapters.
    """

    def __init__(self, parts: DecoderSpec, ops: Ops) -> None:
        assert isinstance(parts.table, Tensor), "torch looks up rows of tensors"
        self._rows = RowAdapters(parts.table.device)
        super().__init__(adapt_linears(parts, self._rows), ops)
        self.adaptable = {**adaptable_projections(parts), LM_HEAD: (parts.head.shape[0], parts.head.shape[1])}

    def add_adapter(self, number: int, weights: AdapterWeights) -> int:
        """See TakesAdapters."""
        wide, device = torch.promote_types(self.dtype, torch.float32), self._table.device
        products = replace(weights, replaced={}).map_tensors(lambda tensor: tensor.to(device, wide))
        replaced = {name: tensor.to(device, self.dtype) for name, tensor in weights.replaced.items()}
        kept = replace(products, replaced=replaced)
        self._rows.add(number, kept)
        return kept.num_bytes

    def remove_adapter(self, number: int) -> None:
        """See TakesAdapters."""
        self._rows.remove(number)

    def use_adapters(self, numbers: Int32 | None) -> None:
        """See TakesAdapters."""
        self._rows.use(numbers)

    def embed(self, input_ids: Tensor) -> Tensor:
        """Look up input_ids int64 [T], each row in its adapter's table: [T, H]."""
        out = super().embed(input_ids)
        for weights, rows in self._rows.segments:
            own = input_ids.index_select(0, rows)
            if (table := weights.replaced.get(EMBEDDING)) is not None:
                out[rows] = self._ops.embed(own, table)
            if (part := weights.embedding) is not None:
                added = self._ops.linear(part.a.index_select(1, own).T, part.b, None) * part.scale
                out[rows] = (out[rows] + added).to(out.dtype)
        return out

    def project(self, hidden: Tensor) -> Tensor:
        """Multiply hidden states [R, H] by the lm_head, each row by its adapter's: [R, V]."""
        out = super().project(hidden)
        for weights, rows in self._rows.segments:
            own = hidden.index_select(0, rows)
            if (head := weights.replaced.get(LM_HEAD)) is not None:
                out[rows] = self._ops.linear(own, head, None)
            if (part := weights.projections.get(LM_HEAD)) is not None:
                product = out[rows] + low_rank_product(own, part, self._ops)
                out[rows] = (product if part.gain is None else part.gain * product).to(out.dtype)
        return out
