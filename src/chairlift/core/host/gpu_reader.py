"""GpuReader: use and memory of the GPUs that a replica sees; without a GPU or its driver there are none."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.host.nvml import GpuHandle, Nvml, NvmlFailed

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""Time after which the driver's library is opened again where it is missing, or where a GPU cannot be read."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
MIG = "MIG-"
"""Begin of the UUID of a part of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """One GPU at one moment.

    Attributes:
        gpu: its number in the order of the PCI bus, as in nvidia-smi, or the UUID of a part of one (MIG).
        name: name of the product.
        utilization_ratio: share of the time in which it computes; None if it does not report it, like the next two.
        memory_used_bytes: used memory, by any process.
        memory_total_bytes: all its memory.
        error: why a number is missing; "" if none is.
    """

    gpu: str
    name: str = ""
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    error: str = ""


class GpuReader:
    """Reads GPUs through NVML. Belongs to one thread; a call may hang with the driver."""

    def __init__(
        self, device: str | None, environ: Mapping[str, str], *, open_library: Callable[[], Nvml] = Nvml.open,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Read the GPU of a torch device ("cuda" or "cuda:1"); None is every GPU that `environ` leaves visible."""
        self._device, self._environ = device, environ
        self._open_library, self._clock = open_library, clock or SystemClock()
        self._nvml: Nvml | None = None
        self._gpus: Sequence[tuple[str, GpuHandle]] = ()
        self._retry_at = -math.inf
        self._error = ""

    def read(self) -> tuple[GpuUsage, ...]:
        """Return the GPUs as they are now; empty without any, or if the driver cannot say."""
        if self._nvml is None and self._clock.now() >= self._retry_at:
            self._open()
        if self._nvml is None:
            return ()
        usages = tuple(_read_gpu(self._nvml, name, handle) for name, handle in self._gpus)
        error = next((f"GPU {each.gpu}: {each.error}" for each in usages if each.memory_total_bytes is None), "")
        if error and error != self._error:
            log.warning("the use of a GPU cannot be read: %s", error)
        self._error = error
        if error and self._clock.now() >= self._retry_at:  # after a reset of the GPU its handle is void
            self.close()
            self._open()
        return usages

    def close(self) -> None:
        """Release the library; the next read opens it again."""
        nvml, self._nvml, self._gpus = self._nvml, None, ()
        if nvml is not None:
            with suppress(NvmlFailed):
                nvml.close()

    def _open(self) -> None:
        self._retry_at = self._clock.now() + RETRY_SECONDS
        try:
            self._nvml = nvml = self._open_library()
            visible = visible_gpus(nvml, self._environ.get(VISIBLE))
        except NvmlFailed as error:
            log.debug("NVIDIA GPUs cannot be read: %s", error)
            self.close()
            return
        if self._device is not None:
            index = int(self._device.partition(":")[2] or 0)
            visible = visible[index : index + 1]
        self._gpus = visible


def visible_gpus(nvml: Nvml, names: str | None) -> list[tuple[str, GpuHandle]]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order; None is all. Raises NvmlFailed.

    A name is a number or the begin of a UUID. Like CUDA, this stops at the first name that no GPU has. Numbers follow
    the PCI bus; CUDA's do with CUDA_DEVICE_ORDER=PCI_BUS_ID, or if the GPUs are of one type.
    """
    num_gpus = nvml.num_gpus()
    if names is None:
        return [(str(index), nvml.gpu(index)) for index in range(num_gpus)]
    found: dict[str, GpuHandle] = {}
    for name in (each.strip() for each in names.split(",")):
        try:
            if name.startswith(MIG):
                found[name] = nvml.gpu_by_uuid(name)
                continue
            index = int(name) if name.isdigit() else _index_by_uuid(nvml, name, num_gpus)
            found[str(index)] = nvml.gpu(index)
        except NvmlFailed:
            break
    return list(found.items())


def _index_by_uuid(nvml: Nvml, begin: str, num_gpus: int) -> int:
    """Return the only GPU whose UUID has this begin. Raises NvmlFailed."""
    found = [index for index in range(num_gpus) if begin and nvml.uuid(nvml.gpu(index)).startswith(begin)]
    if len(found) != 1:
        raise NvmlFailed(f"{len(found)} GPUs have a UUID that begins with {begin!r}")
    return found[0]


def _read_gpu(nvml: Nvml, gpu: str, handle: GpuHandle) -> GpuUsage:
    name, ratio, error = "", None, ""
    used, total = None, None
    try:
        name = nvml.name(handle)
        used, total = nvml.memory_bytes(handle)
        ratio = nvml.utilization_ratio(handle)  # last: a part of a GPU (MIG) does not report it
    except NvmlFailed as failure:
        error = str(failure)
    return GpuUsage(
        gpu=gpu, name=name, utilization_ratio=ratio, memory_used_bytes=used, memory_total_bytes=total, error=error
    )
