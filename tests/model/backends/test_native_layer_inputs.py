"""InputBuffers: inputs of layers and their products on the native kernels are those of torch, row by row."""

import ctypes

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.backends.native_layer_inputs import InputBuffers
from chairlift.model.kernels.cpu import library
from chairlift.model.layers.linear_and_rms_norm import Linear, RMSNorm
from chairlift.model.layers.ops import TorchOps
from chairlift.model.layers.per_layer_inputs import SUM_SCALE, PerLayerInputs
from support_native import Operations, instruction_sets
from support_shares import for_each

LAYERS, HIDDEN = 3, 48


def inputs_of(size: int) -> PerLayerInputs:
    dice = torch.Generator().manual_seed(size)
    table, weight = (torch.randn(rows, columns, generator=dice).float() for rows, columns in (
        (20, LAYERS * size), (LAYERS * size, HIDDEN),
    ))  # fmt: skip
    norm = RMSNorm(torch.rand(size, generator=dice) + 0.5, 1e-3, in_float32=True)
    return PerLayerInputs(table, Linear(weight, None, {"projection": len(weight)}), HIDDEN**-0.5, norm)


def made(name: str, inputs: PerLayerInputs, ids: Tensor, projected: Tensor) -> Tensor:
    """Return the native inputs [T, layers * P] of ids and the outputs of the projection."""
    on = Operations(name)
    buffers = InputBuffers.add(on.handle, inputs, LAYERS)
    assert isinstance(inputs.table, Tensor)
    on.native.add_embed(
        on.handle, on.keep(inputs.table), library.FLOAT32, None, LAYERS * inputs.size,
        ctypes.c_float(inputs.size**0.5 * SUM_SCALE), buffers.inputs,
    )  # fmt: skip
    buffers.add_norms(on.handle, inputs, on.keep(inputs.norm.weight * SUM_SCALE))
    count = len(ids)
    assert on.native.reserve(on.handle, count) == 0
    on.rows(buffers.projected, count, torch.float32)[:, : LAYERS * inputs.size] = projected
    on.run(count, ids=ids.data_ptr())
    return on.rows(buffers.inputs, count, torch.float32)[:, : LAYERS * inputs.size].clone()


@for_each("size", [256, 8, 20, 1])
@for_each("name", instruction_sets())
def test_inputs_are_those_of_torch_and_each_row_is_its_own(name: str, size: int) -> None:
    inputs = inputs_of(size)
    ids = torch.tensor([3, 0, 19, 3, 7])
    embedded = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    projected = inputs.projection(embedded, TorchOps())
    found = made(name, inputs, ids, projected)
    torch.testing.assert_close(found.view(5, LAYERS, size), inputs(ids, embedded, TorchOps()), rtol=1e-5, atol=1e-5)
    assert torch.equal(made(name, inputs, ids[2:4].clone(), projected[2:4]), found[2:4])


@for_each("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
@for_each("size", [256, 20, 1])
@pytest.mark.parametrize("kind", [library.F32, library.BF16])
@for_each("name", instruction_sets())
def test_a_product_has_the_layer_s_columns_and_leaves_what_follows_them(
    name: str, kind: int, size: int, activation: str
) -> None:
    dtype = torch.float32 if kind == library.F32 else torch.bfloat16
    on, count = Operations(name), 9
    buffers = InputBuffers.add(on.handle, inputs_of(size), LAYERS)
    target = on.buffer(kind, size)
    buffers.add_product(on.handle, 1, activation, target)
    assert on.native.reserve(on.handle, count) == 0
    dice = torch.Generator().manual_seed(2)
    gates, ups = torch.randn(count, size, generator=dice) * 3, torch.randn(count, LAYERS * size, generator=dice)
    on.rows(buffers.gate, count, torch.float32).fill_(torch.nan)[:, :size] = gates
    on.rows(buffers.inputs, count, torch.float32)[:, : LAYERS * size] = ups
    on.run(count)
    found = on.rows(target, count, dtype)
    activated = functional.silu(gates) if activation == "silu" else functional.gelu(
        gates, approximate="tanh" if activation == "gelu_pytorch_tanh" else "none"
    )  # fmt: skip
    expected = activated * ups[:, size : 2 * size]
    tolerance = 1e-5 if kind == library.F32 else 1e-2
    torch.testing.assert_close(found[:, :size].float(), expected, rtol=tolerance, atol=tolerance)
    assert not found[:, size:].any(), "zeros that pad the inputs of the next product"


@for_each("factor", [1.0, 0.25])
@for_each("name", instruction_sets())
def test_a_norm_is_added_and_the_sum_multiplied(name: str, factor: float) -> None:
    on, count, width = Operations(name), 7, 75
    source, target = on.buffer(library.F32, width), on.buffer(library.F32, width)
    dice = torch.Generator().manual_seed(3)
    weight, x, y = (torch.randn(*shape, generator=dice) for shape in ((width,), (count, width), (count, width)))
    on.native.add_sum_norm(on.handle, source, on.keep(weight), 1e-3, 1, width, factor, target)
    assert on.native.reserve(on.handle, count) == 0
    on.rows(source, count, torch.float32)[:, :width] = y
    on.rows(target, count, torch.float32)[:, :width] = x
    on.run(count)
    expected = factor * (x + functional.rms_norm(y, (width,), weight, 1e-3))
    torch.testing.assert_close(on.rows(target, count, torch.float32)[:, :width], expected, rtol=1e-5, atol=1e-5)
