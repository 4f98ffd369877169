"""Products with packed weights against float64, and the check before they are used."""

import pytest
import torch

from chairlift.model.layers import onednn_linear

CPU = torch.device("cpu")
NARROW = [torch.float32, torch.bfloat16]


@pytest.fixture(params=NARROW)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    kind: torch.dtype = request.param
    if not onednn_linear.usable(kind, CPU):
        pytest.skip(f"no oneDNN products in {kind} here")
    return kind


@pytest.mark.parametrize("rows", [0, 1, 2, 31, 32, 33, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_any_number_of_rows_goes_through_a_packed_weight(dtype: torch.dtype, rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 72).to(dtype), torch.randn(40, 72).to(dtype)
    added = torch.randn(40).to(dtype) if bias else None
    packed = onednn_linear.pack(weight)
    assert packed.shape == weight.shape
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    bound = 4 * torch.finfo(dtype).eps * (exact.abs() + 50)
    for kind in (weight, packed):
        found = onednn_linear.linear(x, kind, added)
        assert (found.dtype, found.shape) == (dtype, (rows, 40))
        assert bool(((found.double() - exact).abs() <= bound).all())


def test_other_devices_and_machines_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not onednn_linear.usable(torch.float32, torch.device("meta"))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not onednn_linear.usable(torch.float32, CPU)


@pytest.mark.parametrize("error", [RuntimeError, AttributeError, NotImplementedError])
def test_a_product_that_raises_is_not_used(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def broken(*args: object) -> None:
        raise error("not in this build")

    monkeypatch.setattr(onednn_linear, "pack", broken)
    assert not onednn_linear.usable(torch.float32, CPU)


def test_a_product_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = onednn_linear.linear
    monkeypatch.setattr(onednn_linear, "linear", lambda x, weight, bias: right(x, weight, bias) * 1.001)
    assert not onednn_linear.usable(torch.float32, CPU)


def test_steps_of_any_size_have_few_different_numbers_of_rows() -> None:
    """Each of them costs a kernel, about a megabyte, for ever."""
    sizes = {min(onednn_linear.padded_rows(count), onednn_linear.TILE_ROWS) for count in range(1, 5000)}
    assert len(sizes) == 17
    for count in range(1, 5000):
        padded = onednn_linear.padded_rows(count)
        assert count <= padded <= max(2 * count - 1, 1) and padded - count < 32
        rest = padded % onednn_linear.TILE_ROWS
        assert not rest or onednn_linear.padded_rows(rest) == rest, "the last tile of a large step is none of its own"


@pytest.mark.parametrize(
    "rows", [onednn_linear.TILE_ROWS, onednn_linear.TILE_ROWS + 1, 3 * onednn_linear.TILE_ROWS, 700]
)
def test_many_rows_go_in_tiles_and_come_back_in_order(rows: int) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 32), torch.randn(24, 32)
    found = onednn_linear.linear(x, onednn_linear.pack(weight), None)
    assert torch.allclose(found, x @ weight.T, atol=1e-4)
