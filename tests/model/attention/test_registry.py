"""make_backend: imports known backends; the errors say what is known or missing; "auto" is the best for a device."""

import importlib.util
import sys

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.flash_attention import FlashAttention3
from chairlift.model.attention.flashinfer import FlashInferAttention
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.attention.registry import backend_factory, make_backend
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.attention.triton import TritonAttention
from chairlift.model.config.attention_backend_names import BACKEND_ALIASES, BACKENDS, resolve_backend_name
from support_cuda_device import simulate_gpu
from support_flash_attn import stand_in as flash_attn
from support_flashinfer import stand_in as flashinfer
from support_shares import for_each


def test_the_reference_is_made_by_its_name() -> None:
    assert isinstance(make_backend("reference"), ReferenceAttention)
    assert isinstance(make_backend("reference", "cuda", "bfloat16"), ReferenceAttention)


@for_each(
    ("device", "dtype", "expected"),
    [
        ("cpu", "bfloat16", "torch"), ("cpu", "float32", "torch"), ("mps", "float16", "torch"),
        ("cuda", "bfloat16", "triton"), ("cuda:1", "float16", "triton"), ("cuda", "float32", "triton"),
        ("cuda", "float64", "torch"),
    ],
)  # fmt: skip
def test_auto_is_triton_on_a_cuda_device_whose_dtype_it_has(device: str, dtype: str, expected: str) -> None:
    assert resolve_backend_name("auto", device, dtype) == expected
    assert isinstance(
        make_backend("auto", device, dtype), TorchAttention if expected == "torch" else TritonAttention
    )  # fmt: skip
    assert resolve_backend_name("reference", device, dtype) == "reference"


def test_triton_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_backend("triton", "cpu"), TritonAttention)  # by the interpreter, which conftest.py sets
    monkeypatch.delenv("TRITON_INTERPRET")
    refused = r"^attention_backend 'triton' cannot run: {}; set attention_backend to torch, or leave it out$"
    with pytest.raises(ConfigError, match=refused.format("the device is cpu")):
        make_backend("triton", "cpu")
    simulate_gpu(monkeypatch, (7, 0))
    with pytest.raises(
        ConfigError, match=refused.format(r"cuda has compute capability 7\.0, and the kernels need 8\.0")
    ):
        make_backend("triton", "cuda", "float16")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(
        ConfigError, match=refused.format("torch is built for AMD GPUs, and the kernels are for NVIDIA's")
    ):
        make_backend("TRITON_ATTN", "cuda", "float16")


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
    with pytest.raises(
        ConfigError, match="'flash' is unknown; known are auto, torch, triton, reference, flashinfer, fa3"
    ):
        make_backend("flash")


def test_names_of_other_servers_are_known() -> None:
    assert isinstance(make_backend("TORCH_SDPA"), TorchAttention)
    assert isinstance(make_backend("TRITON_ATTN"), TritonAttention)
    for alias, name in (
        ("FLASHINFER", "flashinfer"),
        ("FLASH_ATTN", "fa3"),
        ("flash_attn", "fa3"),
        ("torch_native", "torch"),
    ):
        assert resolve_backend_name(alias, "cuda", "bfloat16") == name
    assert not set(BACKEND_ALIASES) & {"auto", *BACKENDS}


def test_packages_are_called_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr("chairlift.model.attention.flashinfer.FlashInferAttention.__init__", lambda *_: None)
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer())
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash_attn())
    for name, kind in (("flashinfer", FlashInferAttention), ("FLASH_ATTN", FlashAttention3)):
        assert isinstance(make_backend(name, "cuda:0", "bfloat16"), kind)
    assert isinstance(make_backend("auto", "cuda:0", "bfloat16"), TritonAttention)  # never a package


def test_a_package_is_checked_before_its_backend_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, (9, 0))
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    for name in ("flashinfer", "fa3"):
        with pytest.raises(ConfigError, match="which is not installed"):
            backend_factory(name, "cuda:0", "bfloat16")
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer())
    made = []
    monkeypatch.setattr(FlashInferAttention, "__init__", lambda *parts: made.append(parts))
    factory = backend_factory("flashinfer", "cuda:0", "bfloat16")
    assert not made, "its workspace is allocated when the backend is created"
    assert isinstance(factory(), FlashInferAttention) and made


def test_only_triton_is_deterministic() -> None:
    assert isinstance(make_backend("auto", "cuda", "bfloat16", deterministic=True), TritonAttention)
    for name in ("torch", "reference", "flashinfer", "fa3"):
        with pytest.raises(ConfigError, match=f"deterministic needs attention_backend triton, it is {name}"):
            make_backend(name, "cuda", "bfloat16", deterministic=True)
