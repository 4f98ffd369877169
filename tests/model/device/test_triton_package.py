"""Triton's kernels: installed or not, found without an import, and the devices that they run on."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import build, driver

from chairlift.core.errors import ConfigError
from chairlift.model.device.triton_package import (
    can_use_triton,
    check_triton,
    has_triton,
    is_interpreted,
    triton_obstacle,
)
from support_cuda_device import simulate_gpu


def test_it_is_there_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_triton()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not has_triton()


def test_nothing_is_imported() -> None:
    words = "has_triton(), triton_obstacle('cpu'); print('triton' in sys.modules, 'torch' in sys.modules)"
    code = f"import sys; from chairlift.model.device.triton_package import has_triton, triton_obstacle; {words}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False False"


def test_the_interpreter_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_interpreted()  # conftest.py sets it
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert not is_interpreted()
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not is_interpreted()


def test_the_kernels_are_for_nvidia_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [torch.device(name) for name in ("cpu", "meta", "cuda", "cuda:1")]
    assert list(map(can_use_triton, devices)) == [False, False, True, True]
    assert triton_obstacle("mps") == "the device is mps"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not any(map(can_use_triton, devices)) and "AMD" in triton_obstacle("cuda:1")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not any(map(can_use_triton, devices)) and "not installed" in triton_obstacle("cuda")


@pytest.mark.parametrize(("capability", "runs"), [((6, 1), False), ((7, 5), False), ((8, 0), True), ((12, 1), True)])
def test_the_kernels_need_compute_capability_8(
    capability: tuple[int, int], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_gpu(monkeypatch, {"cuda:0": (9, 0), "cuda:1": capability})
    assert can_use_triton(torch.device("cuda:0"))
    assert can_use_triton(torch.device("cuda:1")) == runs
    if not runs:
        found = f"cuda:1 has compute capability {capability[0]}.{capability[1]}, and the kernels need 8.0"
        assert triton_obstacle("cuda:1") == found


@pytest.fixture
def triton_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Triton as it starts on a machine with a GPU, with nothing compiled before and no compiler."""
    simulate_gpu(monkeypatch, (9, 0))
    monkeypatch.setattr(CudaDriver, "is_active", staticmethod(lambda: True))
    monkeypatch.setattr(driver, "_default", None)
    monkeypatch.setattr(driver, "_active", None)
    build._find_compiler.cache_clear()
    for name, value in (
        ("TRITON_INTERPRET", "0"), ("TRITON_CACHE_DIR", str(tmp_path)), ("TRITON_LIBCUDA_PATH", str(tmp_path)),
        ("PATH", str(tmp_path)),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CC", raising=False)
    yield
    build._find_compiler.cache_clear()


@pytest.mark.usefixtures("triton_on_a_gpu")
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (None, "Failed to find C compiler"),
        ("/bin/false", "returned non-zero exit status 1"),
        ("/not/there/gcc", "No such file or directory"),
    ],
)
def test_a_compiler_that_is_missing_or_fails_is_named_at_the_start(
    compiler: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler is not None:
        monkeypatch.setenv("CC", compiler)
    with pytest.raises(
        ConfigError, match=f"device 'cuda:0': Triton cannot start its driver: .*{reason}.*; see"
    ) as caught:
        check_triton("cuda:0")
    assert caught.value.details["option"] == "device" and "set CC" in caught.value.message


@pytest.mark.usefixtures("triton_on_a_gpu")
def test_an_error_without_a_text_is_named_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CudaDriver) -> None:
        raise AssertionError

    monkeypatch.setattr(CudaDriver, "__init__", fail)
    with pytest.raises(ConfigError, match="Triton cannot start its driver: AssertionError; see that it finds"):
        check_triton("cuda:0")


def test_where_no_kernel_of_a_gpu_runs_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_default", None)
    monkeypatch.setattr(driver, "_active", None)
    simulate_gpu(monkeypatch, (9, 0))
    check_triton("cuda:0")  # the interpreter runs it
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    check_triton("cpu")
    assert driver._default is None and driver._active is None
