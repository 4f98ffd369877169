"""NativeExperts: adds layers of experts to a decoder of the native kernels, whose buffers all of them share.

    normed rows ┬→ linear → [logits] → route
                ├→ quantize? → experts, gated → [gated] → quantize? → experts → [outputs] → sum ─(+)─ out
                └→ gated linear → quantize? → linear → [shared] · sigmoid(logit)? ─────────┘

The router's product has the precision of float32: of bfloat16 rows with a bfloat16 weight it has the same factors.
"""

import ctypes
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.backends.native_attention import BUFFER_KINDS
from chairlift.model.kernels.cpu import kernel_structs, library
from chairlift.model.kernels.cpu.packing import (
    PackedWeight,
    Packer,
    packed_weight,
    padded_bias,
    padded_inputs,
    row_quantization,
)
from chairlift.model.kernels.cpu.threads import ThreadPool
from chairlift.model.layers.expert_router import ExpertRouter
from chairlift.model.layers.experts import Experts, SharedExpert
from chairlift.model.layers.linear_and_rms_norm import Linear
from chairlift.model.weights.linear_weight import LinearWeight


class NativeExperts:
    """Adds layers of experts to one decoder of the library.

    Owns: the memory that the operations point to. It must live as long as the decoder.
    """

    def __init__(self, decoder: int, pool: ThreadPool, dtype: torch.dtype, hidden: int) -> None:
        """Add to the decoder at an address; dtype is that of its activations, hidden the width of its rows."""
        self._decoder, self._dtype, self._hidden = decoder, dtype, hidden
        self._native = library.load()
        self._packer = Packer(pool, library.FLOAT32, torch.float32)
        self._buffers: dict[tuple[str, int, int, int, int], int] = {}
        self._quantized_rows: set[tuple[int, int]] = set()  # of the layer that is added: source and target
        self._kept: list[object] = []

    def input_kinds(self, experts: Experts) -> tuple[int, ...]:
        """Return the kinds of buffers of normed rows that a layer reads: float32 where rows are quantized.

        They are two where the shared expert has codes and the others have not, or the reverse.
        """
        weights = [experts.weights.gate_up[0]] + ([experts.shared.gate_up.weight] if experts.shared else [])
        return tuple(sorted({self._input_kind(packed_weight(each)) for each in weights}))

    def add(
        self, experts: Experts, normed: Mapping[int, int], out: int, *, adds: bool, factor: float = 1.0,
        router_rows: int | None = None,
    ) -> None:  # fmt: skip
        """Add a layer that writes to a float32 buffer `out`, or adds to it, `factor` times its result.

        Args:
            experts: the layer; its weights are packed.
            normed: the buffers of its rows, of each of input_kinds().
            out: a buffer of rows.
            adds: whether the result is added to `out`.
            factor: of the result.
            router_rows: a float32 buffer of the rows of a router that has a norm; None: those of `normed`.

        Raises MemoryError, and ConfigError for experts of several kinds.
        """
        weights, shared = experts.weights, experts.shared
        count, chosen = len(weights.down), experts.router.config.experts_per_token
        first, down = packed_weight(weights.gate_up[0]), packed_weight(weights.down[0])
        self._kept.append(experts)
        self._quantized_rows.clear()
        plan, logits = self._add_router(experts.router, shared, normed, router_rows)
        kind = self._input_kind(first)
        quantized_down, gated_kind = row_quantization(down), self._input_kind(down)
        call = kernel_structs.ExpertsCall(
            in_=self._quantized("rows", normed[kind], first),
            gathered=self._buffer_of_rows("gathered", kind, first, chosen),
            gated=self._buffer("gated", gated_kind, first.shape[0] // 2, pairs=chosen),
            quantized=-1 if quantized_down is None else self._buffer_of_rows("gated rows", gated_kind, down, chosen),
            outputs=self._buffer("outputs", library.F32, self._hidden, pairs=chosen),
            shared=-1 if shared is None else self._add_shared(shared, normed),
            gates=-1 if shared is None or shared.gate is None else logits, gate_column=count, out=out, adds=adds,
            factor=factor, activation=library.EXPERT_ACTIVATIONS[weights.activation],
            gate_up=self._pointers(weights.gate_up), down=self._pointers(weights.down),
            gate_up_biases=self._biases(weights.gate_up_bias, first, gated=True),
            down_biases=self._biases(weights.down_bias, down, gated=False),
        )  # fmt: skip
        if self._native.add_experts(self._decoder, plan, ctypes.byref(call)) < 0:
            raise MemoryError("no memory for a layer of experts")

    @property
    def _own_kind(self) -> int:
        return BUFFER_KINDS[self._dtype]

    def _input_kind(self, weight: PackedWeight) -> int:
        return self._own_kind if row_quantization(weight) is None else library.F32

    def _add_router(
        self, router: ExpertRouter, shared: SharedExpert | None, normed: Mapping[int, int], router_rows: int | None
    ) -> tuple[int, int]:
        """Add the router, and the gate of the shared expert as one more logit; return its plan and its logits."""
        config, weight = router.config, router.weight
        source_kind = library.F32 if library.F32 in normed else self._own_kind
        source = normed[source_kind]
        if router.input_scale is not None:
            source, source_kind = self._buffer("router rows", library.F32, self._hidden), library.F32
            assert router_rows is not None, "a router with a norm has rows of its own"
            assert config.norm_eps is not None
            self._native.add_norm(
                self._decoder, router_rows, self._keep(router.input_scale), config.norm_eps, source, False, -1
            )
        if shared is not None and shared.gate is not None:
            assert router.input_scale is None, "the gate of the shared expert reads the router's rows"
            weight = torch.cat((weight, shared.gate.to(weight.dtype)))
        packed, _ = self._packer.pack(
            [weight.float()], kind=library.BFLOAT16 if source_kind == library.BF16 else library.FLOAT32
        )
        self._kept.append(packed)
        logits = self._buffer("logits", library.F32, len(weight))
        bias = None
        if router.bias is not None:
            bias = self._keep(padded_bias(router.bias, packed, gated=False))
        self._linear(packed, source, bias, library.STORE, 0, logits)
        settings = kernel_structs.RouterSettings(
            num_experts=config.num_experts, experts_per_row=config.experts_per_token,
            scoring=library.SCORINGS[config.scoring], renormalizes=config.renormalizes, sum_offset=config.sum_offset,
            scaling_factor=config.scaling_factor, num_groups=config.num_groups, groups_per_row=config.groups_per_token,
            correction_bias=None if router.correction_bias is None else self._keep(router.correction_bias),
            expert_scales=None if router.expert_scales is None else self._keep(router.expert_scales),
        )  # fmt: skip
        plan: int = self._native.add_router(self._decoder, ctypes.byref(settings), logits)
        if plan < 0:
            raise MemoryError("no memory for a router")
        return plan, logits

    def _add_shared(self, shared: SharedExpert, normed: Mapping[int, int]) -> int:
        """Add the shared expert without its gate; return the buffer of its outputs."""
        gate_up, down = packed_weight(shared.gate_up.weight), packed_weight(shared.down.weight)
        source = normed[self._input_kind(gate_up)]
        gated = self._buffer("shared gated", self._input_kind(down), gate_up.shape[0] // 2)
        self._linear(
            gate_up, self._quantized("rows", source, gate_up), self._bias(shared.gate_up, gate_up, gated=True),
            library.GATED, library.ACTIVATIONS[shared.activation], gated,
        )  # fmt: skip
        out = self._buffer("shared", library.F32, self._hidden)
        bias = self._bias(shared.down, down, gated=False)
        self._linear(down, self._quantized("shared rows", gated, down), bias, library.STORE, 0, out)
        return out

    def _linear(
        self, weight: PackedWeight, source: int, bias: int | None, mode: int, activation: int, target: int
    ) -> None:  # fmt: skip
        segments = (ctypes.POINTER(kernel_structs.Weight) * len(weight.segments))(*map(ctypes.pointer, weight.segments))
        self._native.add_linear(
            self._decoder, source, segments, len(segments), bias, mode, activation, None, target
        )  # fmt: skip

    def _quantized(self, name: str, source: int, weight: PackedWeight) -> int:
        """Return the buffer that a weight multiplies: `source`, or its rows, which are quantized once in a layer."""
        if row_quantization(weight) is None:
            return source
        target = self._buffer_of_rows(name, library.QUANTIZED, weight)
        if (source, target) not in self._quantized_rows:
            self._quantized_rows.add((source, target))
            self._native.add_quantize(self._decoder, source, target)
        return target

    def _buffer_of_rows(self, name: str, kind: int, weight: PackedWeight, pairs: int = 1) -> int:
        """Return a buffer of the inputs of a weight: of a kind, or quantized as it demands."""
        if (row_kind := row_quantization(weight)) is None:
            return self._buffer(name, kind, weight.shape[1], pairs=pairs)
        return self._buffer(name, library.QUANTIZED, padded_inputs(weight), row_kind, pairs)

    def _buffer(
        self, name: str, kind: int, width: int, quantization: int = library.BFLOAT16, pairs: int = 1
    ) -> int:  # fmt: skip
        key = name, kind, width, quantization, pairs
        if key not in self._buffers:
            self._buffers[key] = self._native.add_buffer_of_pairs(self._decoder, kind, width, quantization, pairs)
        return self._buffers[key]

    def _pointers(self, weights: Sequence[LinearWeight]) -> "ctypes.Array[ctypes._Pointer[kernel_structs.Weight]]":
        """Return the addresses of the experts' weights.

        Raises ConfigError for experts whose rows are quantized in several ways.
        """
        packed = [packed_weight(each) for each in weights]
        assert len({each.shape for each in packed}) == 1, "experts of several shapes"
        if len({row_quantization(each) for each in packed}) > 1:
            raise ConfigError(
                "the native kernels cannot multiply experts of a layer some of which have codes and others have not; "
                "set quantization to none", option="quantization",
            )  # fmt: skip
        pointers = (ctypes.POINTER(kernel_structs.Weight) * len(packed))(
            *(ctypes.pointer(each.struct) for each in packed)
        )
        self._kept.append(pointers)
        return pointers

    def _biases(self, biases: Tensor | None, weight: PackedWeight, *, gated: bool) -> int | None:
        """Return the address of biases [E, O] in the order of a weight's panels, [E, panels * 64]."""
        if biases is None:
            return None
        return self._keep(torch.stack([padded_bias(bias, weight, gated=gated) for bias in biases]))

    def _bias(self, linear: Linear, weight: PackedWeight, *, gated: bool) -> int | None:
        return None if linear.bias is None else self._keep(padded_bias(linear.bias, weight, gated=gated))

    def _keep(self, tensor: Tensor) -> int:
        """Convert a tensor to float32 and keep it alive; return its address."""
        kept = tensor.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()
