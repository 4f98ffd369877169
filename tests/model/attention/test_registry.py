"""make_backend: imports known backends; the errors say what is known or missing; "auto" is the best for a device."""

import importlib.util

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.registry import BACKENDS, make_backend, resolve_backend_name
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.attention.triton import TritonAttention


def test_the_reference_is_made_by_its_name() -> None:
    assert isinstance(make_backend("reference"), ReferenceAttention)
    assert isinstance(make_backend("reference", "cuda", "bfloat16"), ReferenceAttention)


@pytest.mark.parametrize(
    ("device_type", "dtype", "expected"),
    [
        ("cpu", "bfloat16", "torch"), ("cpu", "float32", "torch"), ("mps", "float16", "torch"),
        ("cuda", "bfloat16", "triton"), ("cuda", "float16", "triton"), ("cuda", "float32", "triton"),
        ("cuda", "float64", "torch"),
    ],
)  # fmt: skip
def test_auto_is_triton_on_a_cuda_device_whose_dtype_it_has(device_type: str, dtype: str, expected: str) -> None:
    assert resolve_backend_name("auto", device_type, dtype) == expected
    assert isinstance(
        make_backend("auto", device_type, dtype), TorchAttention if expected == "torch" else TritonAttention
    )
    assert resolve_backend_name("reference", device_type, dtype) == "reference"


def test_without_triton_auto_is_torch_and_its_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    assert isinstance(make_backend("auto", "cuda", "bfloat16"), TorchAttention)
    with pytest.raises(ConfigError, match="needs the package triton, which is not installed; install it or set"):
        make_backend("triton", "cuda", "bfloat16")


def test_every_name_leads_to_a_class() -> None:
    for name in BACKENDS:
        make_backend(name)


def test_an_unknown_name_ends_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'flash' is unknown; known are auto, torch, triton, reference"):
        make_backend("flash")


def test_only_triton_is_deterministic() -> None:
    assert isinstance(make_backend("auto", "cuda", "bfloat16", deterministic=True), TritonAttention)
    for name in ("torch", "reference"):
        with pytest.raises(ConfigError, match=f"deterministic needs attention_backend triton, it is {name}"):
            make_backend(name, "cuda", "bfloat16", deterministic=True)
