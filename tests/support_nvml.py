"""A library like NVIDIA's NVML with two GPUs, compiled for the tests; its variables can be set."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from chairlift.core.host.nvml import Nvml

UUIDS = ("GPU-11111111-aaaa", "GPU-12222222-bbbb")
MIG_UUID = "MIG-33333333-cccc"
GIB = 2**30

SOURCE = r"""
#include <string.h>
typedef struct { const char *name, *uuid; unsigned long long total, used; unsigned busy; int error, use_error; } Gpu;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 6, TOO_SMALL, NO_DRIVER = 9, LOST = 15 };
static Gpu gpus[3] = {
    {"NVIDIA H100", "GPU-11111111-aaaa", 80ULL << 30, 20ULL << 30, 35},
    {"NVIDIA H200", "GPU-12222222-bbbb", 140ULL << 30, 105ULL << 30, 75},
    {"NVIDIA H100 MIG 1g", "MIG-33333333-cccc", 10ULL << 30, 1ULL << 30, 0, OK, NOT_SUPPORTED}};
int fake_gpus = 2, fake_init_error, fake_error[3], fake_num_inits, fake_num_open;
static int check(Gpu *gpu) {
    if (!fake_num_open) return UNINITIALIZED;
    if (gpu < gpus || gpu >= gpus + 3) return INVALID;
    return fake_error[gpu - gpus];
}
int nvmlInit_v2(void) {
    fake_num_inits++;
    if (!fake_init_error) fake_num_open++;
    return fake_init_error;
}
int nvmlShutdown(void) { return fake_num_open ? (fake_num_open--, OK) : UNINITIALIZED; }
int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
    if (size < 10) return TOO_SMALL;
    return fake_num_open ? (strcpy(buffer, "580.95.05"), OK) : UNINITIALIZED;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = fake_gpus;
    return fake_num_open ? OK : UNINITIALIZED;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index >= (unsigned)fake_gpus) return INVALID;
    *gpu = gpus + index;
    return fake_num_open ? OK : UNINITIALIZED;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    for (int i = 0; i < 3; i++)
        if (!strcmp(gpus[i].uuid, uuid)) return *gpu = gpus + i, OK;
    return NOT_FOUND;
}
static int text(Gpu *gpu, const char *value, char *buffer, unsigned size) {
    if (strlen(value) >= size) return TOO_SMALL;
    int error = check(gpu);
    if (!error) strcpy(buffer, value);
    return error;
}
int nvmlDeviceGetName(Gpu *gpu, char *buffer, unsigned size) { return text(gpu, gpu->name, buffer, size); }
int nvmlDeviceGetUUID(Gpu *gpu, char *buffer, unsigned size) { return text(gpu, gpu->uuid, buffer, size); }
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *use) {
    *use = (Utilization){gpu->busy, 7};
    return check(gpu) ? check(gpu) : gpu->use_error;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    *memory = (Memory){gpu->total, gpu->total - gpu->used, gpu->used};
    return check(gpu);
}
const char *nvmlErrorString(int error) {
    switch (error) {
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case NO_DRIVER: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    }
    return "Unknown Error";
}
"""
NO_DRIVER, LOST = 9, 15


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "nvml.c"), Path(folder, "libnvml.so")
        source.write_text(SOURCE, encoding="utf-8")
        subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", library, source], check=True)
        return ctypes.CDLL(str(library))


class FakeNvml:
    """The library, as after a start of the machine."""

    def __init__(self) -> None:
        self.library = _library()
        self.set("fake_gpus", 2)
        for name in ("fake_init_error", "fake_num_inits", "fake_num_open"):
            self.set(name, 0)
        self.fail_gpus(0, 0, 0)

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, name).value = value

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, name).value

    def fail_gpus(self, *errors: int) -> None:
        """Let calls for these GPUs fail with an error; 0 is none."""
        (ctypes.c_int * 3).in_dll(self.library, "fake_error")[: len(errors)] = errors

    def open(self) -> Nvml:
        return Nvml(self.library)
