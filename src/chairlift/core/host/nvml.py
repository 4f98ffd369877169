"""Nvml: calls of NVIDIA's management library (NVML), which comes with the driver as libnvidia-ml.so.1.

It needs no package, and unlike CUDA it takes no memory of the GPU.
"""

import ctypes
from typing import Self

LIBRARY = "libnvidia-ml.so.1"
TEXT_BYTES = 96
"""Size of the buffer for a name or a UUID: the library needs 96 bytes at most."""

GpuHandle = ctypes.c_void_p


class NvmlFailed(Exception):
    """A call failed, or the library is missing; the message is the library's own."""


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: shares of the last sample period in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The library, initialized. Every method raises NvmlFailed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Initialize it."""
        self._library = library
        self._call("nvmlInit_v2")

    @classmethod
    def open(cls, path: str = LIBRARY) -> Self:
        """Load the library and initialize it."""
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise NvmlFailed(str(error)) from None
        return cls(library)

    def close(self) -> None:
        """End the use of the library; handles are void then."""
        self._call("nvmlShutdown")

    def driver_version(self) -> str:
        """Return the version of the driver, as 580.95.05."""
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        self._call("nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def num_gpus(self) -> int:
        """Return how many GPUs the machine has."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def gpu(self, index: int) -> GpuHandle:
        """Return a GPU by its number, in the order of the PCI bus."""
        handle = GpuHandle()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def gpu_by_uuid(self, uuid: str) -> GpuHandle:
        """Return a GPU, or a part of one (MIG), by its whole UUID."""
        handle = GpuHandle()
        self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
        return handle

    def name(self, gpu: GpuHandle) -> str:
        """Return the product's name."""
        return self._text("nvmlDeviceGetName", gpu)

    def uuid(self, gpu: GpuHandle) -> str:
        """Return the UUID, as GPU-8932f937-d72c-4106-c12f-20bd9faed9f6."""
        return self._text("nvmlDeviceGetUUID", gpu)

    def utilization_ratio(self, gpu: GpuHandle) -> float:
        """Return the share of the last sample period (up to a second) in which a kernel ran."""
        sample = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", gpu, ctypes.byref(sample))
        return float(sample.gpu) / 100

    def memory_bytes(self, gpu: GpuHandle) -> tuple[int, int]:
        """Return the bytes of memory that are used, by any process, and all bytes."""
        sample = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(sample))
        return int(sample.used), int(sample.total)

    def _text(self, function: str, gpu: GpuHandle) -> str:
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        self._call(function, gpu, buffer, ctypes.c_uint(TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlFailed(f"the driver is too old: its library has no {name}") from None
        if code := function(*arguments):
            raise NvmlFailed(self._error_text(code))

    def _error_text(self, code: int) -> str:
        try:
            function = self._library.nvmlErrorString
        except AttributeError:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return (function(ctypes.c_int(code)) or b"").decode(errors="replace") or f"error {code}"
