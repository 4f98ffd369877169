"""Nvml: calls of a compiled library with NVML's interface."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from chairlift.core.host.nvml import Nvml, NvmlFailed
from support_nvml import GIB, LOST, MIG_UUID, NO_DRIVER, UUIDS, FakeNvml


def test_every_call_returns_what_the_library_says() -> None:
    fake = FakeNvml()
    nvml = fake.open()
    assert nvml.num_gpus() == 2 and nvml.driver_version() == "580.95.05"
    gpus = [nvml.gpu(index) for index in range(2)]
    assert [nvml.name(gpu) for gpu in gpus] == ["NVIDIA H100", "NVIDIA H200"]
    assert tuple(nvml.uuid(gpu) for gpu in gpus) == UUIDS
    assert [nvml.utilization_ratio(gpu) for gpu in gpus] == [0.35, 0.75]
    assert [nvml.memory_bytes(gpu) for gpu in gpus] == [(20 * GIB, 80 * GIB), (105 * GIB, 140 * GIB)]
    assert nvml.uuid(nvml.gpu_by_uuid(UUIDS[1])) == UUIDS[1]
    nvml.close()
    assert fake.get("fake_num_open") == 0
    with pytest.raises(NvmlFailed, match="Uninitialized"):
        nvml.num_gpus()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda nvml: nvml.gpu(2), "Invalid Argument"),
        (lambda nvml: nvml.gpu_by_uuid("GPU-1"), "Not Found"),
        (lambda nvml: nvml.memory_bytes(nvml.gpu(1)), "GPU is lost"),
        (lambda nvml: nvml.utilization_ratio(nvml.gpu_by_uuid(MIG_UUID)), "Not Supported"),
    ],
)
def test_an_error_has_the_librarys_words(call: Callable[[Nvml], object], message: str) -> None:
    fake = FakeNvml()
    fake.fail_gpus(0, LOST)
    with pytest.raises(NvmlFailed, match=message):
        call(fake.open())


def test_a_missing_library_a_missing_driver_and_an_old_one_are_failures() -> None:
    with pytest.raises(NvmlFailed, match="no-such-library"):
        Nvml.open("no-such-library.so")
    with pytest.raises(NvmlFailed, match="too old: its library has no nvmlInit_v2"):
        Nvml(ctypes.CDLL(None))
    fake = FakeNvml()
    fake.set("fake_init_error", NO_DRIVER)
    with pytest.raises(NvmlFailed, match="Driver Not Loaded"):
        fake.open()


def test_an_error_without_words_has_its_number() -> None:
    wordless = SimpleNamespace(nvmlInit_v2=lambda: 42)
    with pytest.raises(NvmlFailed, match="error 42"):
        Nvml(wordless)  # type: ignore[arg-type]
