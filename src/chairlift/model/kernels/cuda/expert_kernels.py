"""gate_up_kernel, down_kernel, sum_kernel: the products of experts, of all rows and experts of a layer at once.

A pair is a row and one of its experts. Pairs are sorted by expert, and their index in this order is their place. A tile
is some places of one expert. Tiles and the order of sums depend on no batch, and a row's outputs are added by rank, so
a row has the same bits alone, in any batch and at any place in it. The host waits for nothing, so that CUDA graphs can
contain it all: there are as many programs as there could be tiles, and those without one end at once.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.model.kernels.cuda.attention_tiles import EXACT, FAST
from chairlift.model.kernels.cuda.batch_invariant_linear_kernel import LinearTiles, tile_sums
from chairlift.model.kernels.cuda.expert_int4_kernels import int4_down_kernel, int4_expert_tiles, int4_gate_up_kernel
from chairlift.model.kernels.cuda.int4_kernels import TILE_BYTES
from chairlift.model.kernels.cuda.kernel_variant import LAUNCH_OPTIONS, KernelVariant
from chairlift.model.kernels.cuda.layer_kernels import ELEMENTWISE_COLUMNS, gated_values
from chairlift.model.kernels.int4_linear import Int4Weight


def expert_tiles(dtype: torch.dtype) -> LinearTiles:
    """Return the tiles for rows and weights of a dtype; an expert often has few rows."""
    if dtype == torch.float32:
        return LinearTiles(32, 32, 32, 4, 2, EXACT)
    return LinearTiles(64, 64, 64, 8, 3, FAST)


class PairTiles(NamedTuple):
    """The tiles of a step.

    Attributes:
        pairs: int64 [P], the pair of each place.
        experts: int64 [tiles], the expert of each tile; the number of experts where there is no tile.
        begins, ends: int64 [tiles], its first place, and the one behind the last place of its expert.
    """

    pairs: Tensor
    experts: Tensor
    begins: Tensor
    ends: Tensor


def sort_pairs(experts: Tensor, num_experts: int, tile_rows: int) -> PairTiles:
    """Sort the pairs of experts [T, k] and divide them into tiles."""
    of_places, pairs = experts.flatten().sort(stable=True)
    bounds = torch.searchsorted(of_places, torch.arange(num_experts + 1, device=experts.device))
    begins, counts = bounds[:-1], bounds.diff()
    num_tiles = (counts + tile_rows - 1) // tile_rows
    last_tiles = num_tiles.cumsum(0)
    most = min(len(pairs), num_experts + len(pairs) // tile_rows)
    tile = torch.arange(most, device=experts.device)
    expert = torch.searchsorted(last_tiles, tile, right=True)
    known = expert.clamp(max=num_experts - 1)
    first = begins[known] + (tile - (last_tiles - num_tiles)[known]) * tile_rows
    return PairTiles(pairs, expert, first, bounds[1:][known])


@triton.jit
def gate_up_kernel(
    x, weight, bias, out, pairs, tile_experts, tile_begins, tile_ends, x_stride, NUM_EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr, INPUTS: tl.constexpr, NEURONS: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store activation(gate) * up of each pair at its place in dense out [P, NEURONS].

    Grid: tiles of places, tiles of neurons.

    Args:
        x: rows [T, INPUTS], x_stride elements apart; the last stride is 1.
        weight: [NUM_EXPERTS, 2 NEURONS, INPUTS], dense; gates, then ups.
        bias: [NUM_EXPERTS, 2 NEURONS]; read if HAS_BIAS.
        pairs, tile_experts, tile_begins, tile_ends: of PairTiles.
    """
    expert = tl.load(tile_experts + tl.program_id(0))
    if expert < NUM_EXPERTS:
        place = tl.load(tile_begins + tl.program_id(0)) + tl.arange(0, TILE_ROWS)
        is_row = place < tl.load(tile_ends + tl.program_id(0))
        row = tl.load(pairs + place, mask=is_row, other=0) // CHOSEN
        neuron = tl.program_id(1).to(tl.int64) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
        is_neuron = neuron < NEURONS
        inner = tl.arange(0, TILE_INNER)
        x_tile = x + row[:, None] * x_stride + inner[None, :]
        gate_tile = weight + (expert * 2 * NEURONS + neuron)[None, :] * INPUTS + inner[:, None]
        gates = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
        ups = tl.zeros([TILE_ROWS, TILE_OUTPUTS], dtype=tl.float32)
        for start in range(0, INPUTS, TILE_INNER):
            # INPUTS is a constant, so only one of these is compiled.
            if INPUTS % TILE_INNER == 0:
                rows = tl.load(x_tile, mask=is_row[:, None], other=0.0)
                is_weight = is_neuron[None, :]
            else:
                is_inner = start + inner < INPUTS
                rows = tl.load(x_tile, mask=is_row[:, None] & is_inner[None, :], other=0.0)
                is_weight = is_neuron[None, :] & is_inner[:, None]
            gates = tl.dot(rows, tl.load(gate_tile, mask=is_weight, other=0.0), gates, input_precision=PRECISION)
            up_tile = gate_tile + NEURONS * INPUTS
            ups = tl.dot(rows, tl.load(up_tile, mask=is_weight, other=0.0), ups, input_precision=PRECISION)
            x_tile += TILE_INNER
            gate_tile += TILE_INNER
        if HAS_BIAS:
            own = bias + expert * 2 * NEURONS + neuron
            gates += tl.load(own, mask=is_neuron, other=0.0).to(tl.float32)[None, :]
            ups += tl.load(own + NEURONS, mask=is_neuron, other=0.0).to(tl.float32)[None, :]
        values = gated_values(gates, ups, ACTIVATION).to(out.dtype.element_ty)
        tl.store(out + place[:, None] * NEURONS + neuron[None, :], values, mask=is_row[:, None] & is_neuron[None, :])


@triton.jit
def down_kernel(
    gated, weight, bias, factors, out, pairs, tile_experts, tile_begins, tile_ends, NUM_EXPERTS: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the output of each pair times its factor in dense out [P, OUTPUTS], float32, in the order of pairs.

    Grid: tiles of places, tiles of outputs.

    Args:
        gated: [P, INPUTS] in the order of places, dense.
        weight: [NUM_EXPERTS, OUTPUTS, INPUTS], dense.
        bias: [NUM_EXPERTS, OUTPUTS]; read if HAS_BIAS.
        factors: float32 [P], in the order of pairs.
        pairs, tile_experts, tile_begins, tile_ends: of PairTiles.
    """
    expert = tl.load(tile_experts + tl.program_id(0))
    if expert < NUM_EXPERTS:
        place = tl.load(tile_begins + tl.program_id(0)) + tl.arange(0, TILE_ROWS)
        is_row = place < tl.load(tile_ends + tl.program_id(0))
        output = tl.program_id(1).to(tl.int64) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
        is_output = output < OUTPUTS
        sums = tile_sums(
            gated + place * INPUTS, is_row, weight + (expert * OUTPUTS + output) * INPUTS, is_output, INPUTS, TILE_ROWS,
            TILE_OUTPUTS, TILE_INNER, PRECISION, 0,
        )  # fmt: skip
        if HAS_BIAS:
            sums += tl.load(bias + expert * OUTPUTS + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
        pair = tl.load(pairs + place, mask=is_row, other=0)
        sums = sums * tl.load(factors + pair, mask=is_row, other=0.0)[:, None]
        tl.store(out + pair[:, None] * OUTPUTS + output[None, :], sums, mask=is_row[:, None] & is_output[None, :])


@triton.jit
def sum_kernel(terms, out, CHOSEN: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """Store the sums of terms [T, CHOSEN, SIZE], added from the first to the last, in dense out [T, SIZE].

    Grid: rows, parts of a row.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < SIZE
    total = tl.load(terms + row * CHOSEN * SIZE + column, mask=mask, other=0.0)
    for rank in range(1, CHOSEN):
        total += tl.load(terms + (row * CHOSEN + rank) * SIZE + column, mask=mask, other=0.0)
    tl.store(out + row * SIZE + column, total.to(out.dtype.element_ty), mask=mask)


StackedExperts = tuple[Tensor | Int4Weight, Tensor | Int4Weight]
"""Gates and ups, and the projections back: dense [E, 2 I, H] and [E, H, I], or codes [E * 2 I, H] and [E * H, I]."""


def sum_of_experts(
    x: Tensor, experts: Tensor, factors: Tensor, num_experts: int, stacked: StackedExperts,
    biases: tuple[Tensor, Tensor] | None, activation: str,
) -> Tensor:  # fmt: skip
    """Return the outputs of each row's experts times their factors, added by rank: [T, H] in x's dtype.

    Args:
        x: [T, H], of at most 32 bits; columns lie side by side, rows may have any distance.
        experts: int64 [T, k].
        factors: [T, k].
        num_experts: E.
        stacked: the weights.
        biases: [E, 2 I] and [E, H], or None.
        activation: see gated_activation_kernel.
    """
    gate_up, down = stacked
    (num_rows, chosen), hidden, neurons = experts.shape, x.shape[1], down.shape[-1]
    out = x.new_empty(num_rows, hidden)
    if not num_rows:
        return out
    of_step = sort_pairs(experts, num_experts, expert_tiles(x.dtype).rows)
    gated = x.new_empty(num_rows * chosen, neurons)
    terms = x.new_empty(num_rows * chosen, hidden, dtype=torch.float32)
    gate_up_bias, down_bias = (x, x) if biases is None else biases  # a pointer that is not read may be any tensor
    first, outputs, options = _launch(gate_up, x.dtype, gate_up_kernel, int4_gate_up_kernel)
    first[(len(of_step.experts), -(-neurons // outputs))](
        x, *_tensors(gate_up), gate_up_bias, gated, *of_step, x.stride(0), NUM_EXPERTS=num_experts, CHOSEN=chosen,
        INPUTS=hidden, NEURONS=neurons, HAS_BIAS=biases is not None, ACTIVATION=activation, **options,
    )  # fmt: skip
    second, outputs, options = _launch(down, x.dtype, down_kernel, int4_down_kernel)
    second[(len(of_step.experts), -(-hidden // outputs))](
        gated, *_tensors(down), down_bias, factors.float().contiguous(), terms, *of_step, NUM_EXPERTS=num_experts,
        INPUTS=neurons, OUTPUTS=hidden, HAS_BIAS=biases is not None, **options,
    )  # fmt: skip
    sum_kernel[(num_rows, -(-hidden // ELEMENTWISE_COLUMNS))](
        terms, out, CHOSEN=chosen, SIZE=hidden, COLUMNS=ELEMENTWISE_COLUMNS, **LAUNCH_OPTIONS
    )
    return out


def _launch(
    weight: Tensor | Int4Weight, dtype: torch.dtype, dense: Any, of_codes: Any
) -> tuple[Any, int, dict[str, Any]]:
    """Return the kernel for a weight, the outputs of its tiles, and how it is launched."""
    has_codes = isinstance(weight, Int4Weight)
    tiles = int4_expert_tiles(dtype) if has_codes else expert_tiles(dtype)
    assert tiles.rows == expert_tiles(dtype).rows, "places are divided into tiles once"
    options = {
        "TILE_ROWS": tiles.rows, "TILE_OUTPUTS": tiles.outputs, "PRECISION": tiles.precision,
        "num_warps": tiles.num_warps, "num_stages": tiles.num_stages, **LAUNCH_OPTIONS,
        **({"TILE_BYTES": TILE_BYTES} if has_codes else {"TILE_INNER": tiles.inner}),
    }  # fmt: skip
    return of_codes if has_codes else dense, tiles.outputs, options


def _tensors(weight: Tensor | Int4Weight) -> tuple[Tensor, ...]:
    return (weight,) if isinstance(weight, Tensor) else (weight.codes, weight.scales, weight.minima)


def variants() -> Iterator[KernelVariant]:
    """Yield the variants in use: 128 experts of bfloat16 and 32 with biases, float32, also sizes that fill no tile."""
    for name, experts, chosen, hidden, neurons, has_bias, activation in (
        ("bf16", 128, 8, 2048, 768, False, "silu"), ("bf16", 32, 4, 2880, 2880, True, "clamped_swiglu"),
        ("fp32", 9, 3, 1000, 360, True, "silu"),
    ):  # fmt: skip
        tiles = expert_tiles(torch.bfloat16 if name == "bf16" else torch.float32)
        shape = {
            "NUM_EXPERTS": experts, "HAS_BIAS": has_bias, "TILE_ROWS": tiles.rows, "TILE_OUTPUTS": tiles.outputs,
            "TILE_INNER": tiles.inner, "PRECISION": tiles.precision,
        }  # fmt: skip
        launch: dict[str, Any] = {
            "num_warps": tiles.num_warps, "num_stages": tiles.num_stages, "needs_tensor_cores": name == "bf16"
        }  # fmt: skip
        title = f"{name} {experts} experts {neurons} x {hidden}{', bias' if has_bias else ''}"
        own, places = f"*{name}", ["*i64"] * 4
        gate_up = shape | {"CHOSEN": chosen, "INPUTS": hidden, "NEURONS": neurons, "ACTIVATION": activation}
        yield _variant(f"experts gate_up {title}", gate_up_kernel, [own] * 4 + [*places, "i32"], gate_up, launch)
        down = shape | {"INPUTS": neurons, "OUTPUTS": hidden}
        yield _variant(f"experts down {title}", down_kernel, [own] * 3 + ["*fp32", "*fp32", *places], down, launch)
        total = {"CHOSEN": chosen, "SIZE": hidden, "COLUMNS": ELEMENTWISE_COLUMNS}
        yield _variant(f"experts sum {title}", sum_kernel, ["*fp32", own], total, {})


def _variant(
    name: str, kernel: Any, types: list[str], constants: dict[str, Any], launch: dict[str, Any]
) -> KernelVariant:  # fmt: skip
    signature = dict(zip(kernel.arg_names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
    return KernelVariant(name=name, kernel=kernel, signature=signature, constants=constants, **launch)
