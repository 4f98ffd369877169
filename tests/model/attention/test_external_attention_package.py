"""ExternalAttentionPackage: every error before a package is used names the reason and the remedy; sinks as a factor."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.external_attention_package import ExternalAttentionPackage, apply_sinks, library_cache
from chairlift.model.attention.flash_attention import FLASH_ATTENTION
from chairlift.model.attention.flashinfer import FLASHINFER
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.attention.triton import TritonAttention
from support_cuda_device import simulate_gpu

ABSENT = replace(
    FLASHINFER, package="not-there-python", module="not_there", install="run: pip install not-there-python"
)


@pytest.mark.parametrize(
    ("library", "device", "dtype", "capability", "why"),
    [
        (FLASHINFER, "cpu", "bfloat16", (9, 0), "'flashinfer' needs an NVIDIA GPU, the device is cpu; set it to torch"),
        (FLASHINFER, "cuda", "float32", (9, 0), "computes in bfloat16 or float16, the model has float32; set dtype to"),
        (FLASHINFER, "cuda:0", "float16", (7, 5), "needs a GPU of compute capability 8.0 or higher, cuda:0 has 7.5"),
        (FLASH_ATTENTION, "cuda", "bfloat16", (8, 9), "from 9.0, below 10.0, cuda has 8.9; set it to triton or torch"),
        (FLASH_ATTENTION, "cuda", "bfloat16", (10, 0), "from 9.0, below 10.0, cuda has 10.0"),
    ],
)
def test_devices_and_dtypes(
    library: ExternalAttentionPackage, device: str, dtype: str, capability: tuple[int, int], why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    simulate_gpu(monkeypatch, capability)
    with pytest.raises(ConfigError, match=why) as error:
        library.check_device(device, dtype)
    assert error.value.details["option"] == "attention_backend"


def test_gpus_that_a_package_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for library, capability in ((FLASHINFER, (8, 0)), (FLASHINFER, (12, 0)), (FLASH_ATTENTION, (9, 0))):
        simulate_gpu(monkeypatch, capability)
        library.check_device("cuda:0", "float16")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(ConfigError, match="the device is cuda:0 of a torch for AMD GPUs"):
        FLASHINFER.check_device("cuda:0", "float16")


def test_a_package_that_is_not_installed() -> None:
    with pytest.raises(
        ConfigError, match="the package not-there-python, which is not installed; run: pip install not-"
    ):
        ABSENT.load()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ModuleNotFoundError("no", name="tvm_ffi"), "not-there-python, which cannot find its module tvm_ffi; run: pip"),
        (
            OSError("libcudart.so.12 is missing"),
            "cannot import not-there-python of unknown version: OSError: libcudart",
        ),
        (RuntimeError("no CUDA"), "RuntimeError: no CUDA; install the build for torch"),
    ],
)
def test_a_package_that_cannot_be_imported(error: Exception, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "not_there":
                raise error

    monkeypatch.setattr(sys, "meta_path", [Failing(), *sys.meta_path])
    with pytest.raises(ConfigError, match=why):
        ABSENT.load()


def test_what_a_package_must_have(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("not_there")
    module.attend = lambda q, k: None  # type: ignore[attr-defined]
    module.wrapped = lambda *args, **options: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "not_there", module)
    found = ABSENT.load()
    assert found is module
    assert ABSENT.find(found, "attend", ("q", "k")) is module.attend
    assert ABSENT.find(found, "wrapped", ("anything",)) is module.wrapped
    module.compiled = max  # type: ignore[attr-defined]
    assert ABSENT.find(found, "compiled", ("anything",)) is max  # which has no signature
    with pytest.raises(
        ConfigError, match=r"not_there\.attend of not-there-python of unknown version has no parameter v, w;"
    ):
        ABSENT.find(found, "attend", ("q", "v", "w"))
    with pytest.raises(
        ConfigError, match=r"not-there-python of unknown version has no not_there\.run; run: pip install"
    ):
        ABSENT.find(found, "run", ())


def test_the_version_is_that_of_the_installed_package() -> None:
    assert replace(ABSENT, package="numpy").version == np.__version__
    assert ABSENT.version == "of unknown version"


@pytest.mark.parametrize(
    ("library", "head_dim", "dtype", "why"),
    [
        (FLASHINFER, 96, torch.bfloat16, "has heads of 64, 128, 256 numbers, the model has 96; set it to triton"),
        (FLASH_ATTENTION, 264, torch.bfloat16, r"has heads of 8 to 256 \(multiples of 8\) numbers, the model has 264"),
        (FLASH_ATTENTION, 100, torch.float16, "the model has 100"),
        (FLASH_ATTENTION, 64, torch.float8_e4m3fn, "the cache has float8_e4m3fn; set kv_cache_dtype to auto"),
        (FLASHINFER, 64, torch.float64, "has a KV cache of bfloat16 or float16, not float64"),
    ],
)
def test_caches(library: ExternalAttentionPackage, head_dim: int, dtype: torch.dtype, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        library.check_cache(head_dim, dtype)


def test_caches_that_a_package_reads() -> None:
    for library, head_dim, dtype in (
        (FLASHINFER, 128, torch.float16), (FLASHINFER, 256, torch.float8_e4m3fn), (FLASH_ATTENTION, 80, torch.bfloat16),
    ):  # fmt: skip
        library.check_cache(head_dim, dtype)


def test_the_first_call_turns_errors_into_those_of_the_option() -> None:
    def fail(error: Exception) -> None:
        raise error

    call = FLASHINFER.refusing(fail)
    for error in (RuntimeError("ninja is missing"), ValueError("bad page"), AssertionError("shape")):
        with pytest.raises(ConfigError, match=f"raises {type(error).__name__}: {error.args[0]}; see that its kernels"):
            call(error)
    with pytest.raises(torch.OutOfMemoryError):
        call(torch.OutOfMemoryError("full"))
    assert FLASHINFER.refusing(lambda number: number + 1)(1) == 2


def test_the_cache_is_written_by_triton_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(library_cache(torch.device("cuda")), TritonAttention)
    simulate_gpu(monkeypatch, (7, 5))
    assert isinstance(library_cache(torch.device("cuda")), TorchAttention)


def test_sinks_are_a_factor() -> None:
    generator = torch.Generator().manual_seed(1)
    scores, values = torch.randn(5, 3, 7, generator=generator), torch.randn(7, 4, generator=generator)
    sinks = torch.tensor([0.5, -3.0, 6.0])
    with_sinks = torch.cat((scores, sinks[None, :, None].expand(5, -1, 1)), 2).softmax(2)[:, :, :7] @ values
    out = scores.softmax(2) @ values
    apply_sinks(out, scores.logsumexp(2), sinks, out)
    torch.testing.assert_close(out, with_sinks)
