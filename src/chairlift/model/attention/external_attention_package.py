"""ExternalAttentionPackage, LibraryAttention: an installed package with attention, its checks, and its cache.

A backend over such a package writes keys and values by Chairlift's own operations (library_cache). The package only
reads them, as views of the same cache.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.device.compute_capability import capability_name, compute_capability
from chairlift.model.device.kv_dtype import FLOAT8
from chairlift.model.device.triton_package import can_use_triton

OPTION = "attention_backend"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAttentionPackage:
    """A package and what it can do.

    Attributes:
        backend: value of the option attention_backend.
        package: name of the distribution.
        module: what is imported.
        install: what installs it, or a newer version, as the end of a message.
        capabilities: compute capability of its GPUs, times ten: the least, and the first that is too high or None.
        dtypes: names of the dtypes of queries.
        head_dims: sizes of heads.
        has_float8: whether the cache may hold 8-bit floats while queries have 16 bits.
    """

    backend: str
    package: str
    module: str
    install: str
    capabilities: tuple[int, int | None]
    dtypes: tuple[str, ...]
    head_dims: Sequence[int]
    has_float8: bool

    def check_device(self, device: str, dtype: str) -> None:
        """Raise ConfigError unless the package computes in the dtype on the device."""
        if device.partition(":")[0] != "cuda" or torch.version.hip is not None:
            found = device if torch.version.hip is None else f"{device} of a torch for AMD GPUs"
            raise self._refusal(f"needs an NVIDIA GPU, the device is {found}", "set it to torch, or leave it out")
        if dtype not in self.dtypes:
            raise self._refusal(
                f"computes in {' or '.join(self.dtypes)}, the model has {dtype}",
                f"set dtype to {self.dtypes[0]}, or {OPTION} to triton",
            )
        found_capability, (least, end) = compute_capability(device), self.capabilities
        if found_capability < least or (end is not None and found_capability >= end):
            needed = capability_name(least)
            needed = f"{needed} or higher" if end is None else f"from {needed}, below {capability_name(end)}"
            raise self._refusal(
                f"needs a GPU of compute capability {needed}, {device} has {capability_name(found_capability)}",
                "set it to triton or torch",
            )

    def load(self) -> ModuleType:
        """Import the package. Raises ConfigError if it is missing or fails."""
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            why = "is not installed" if error.name == self.module else f"cannot find its module {error.name}"
            raise self._refusal(f"needs the package {self.package}, which {why}", self.install) from error
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            raise self._refusal(
                f"cannot import {self.package} {self.version}: {type(error).__name__}: {error}",
                f"install the build for torch {torch.__version__} ({self.install}), or set it to triton",
            ) from error

    def find(self, owner: Any, name: str, parameters: Sequence[str]) -> Callable[..., Any]:
        """Return owner.name, a function or class that has all of the parameters. Raises ConfigError if it has not."""
        where = f"{getattr(owner, '__name__', self.module)}.{name}"
        found: Callable[..., Any] | None = getattr(owner, name, None)
        if not callable(found):
            raise self._refusal(f"{self.package} {self.version} has no {where}", self.install)
        try:
            known = inspect.signature(found).parameters.values()
        except ValueError:  # compiled code may not say
            return found
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known):
            return found  # a wrapper, which does not say what it passes on
        if missing := sorted(set(parameters) - {one.name for one in known}):
            raise self._refusal(
                f"{where} of {self.package} {self.version} has no parameter {', '.join(missing)}",
                self.install,
            )
        return found

    def check_cache(self, head_dim: int, dtype: torch.dtype) -> None:
        """Raise ConfigError unless the package reads a cache of these heads and this dtype."""
        name = str(dtype).removeprefix("torch.")
        if head_dim not in self.head_dims:
            raise self._refusal(
                f"has heads of {_sizes(self.head_dims)} numbers, the model has {head_dim}", "set it to triton"
            )
        if dtype == FLOAT8 and not self.has_float8:
            raise self._refusal(
                f"has no KV cache of 8-bit floats beside queries of 16 bits, the cache has {name}",
                "set kv_cache_dtype to auto, or attention_backend to triton",
            )
        if dtype != FLOAT8 and name not in self.dtypes:
            raise self._refusal(f"has a KV cache of {' or '.join(self.dtypes)}, not {name}", "set it to triton")

    def refusing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the package for its first call: what it raises becomes ConfigError, but no memory.

        Packages refuse shapes, and build or load their kernels, only then. That is before the engine is ready.
        """

        def call(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            # Memory is not the package's fault: the step is tried again with fewer tokens.
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise self._refusal(
                    f"fails, since {self.package} {self.version} raises {type(error).__name__}: {error}",
                    "see that its kernels can be built and loaded here, or set it to triton",
                ) from error

        return call

    @property
    def version(self) -> str:
        """The installed version, or "of unknown version"."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "of unknown version"

    def _refusal(self, what: str, remedy: str) -> ConfigError:
        return ConfigError(f"{OPTION} {self.backend!r} {what}; {remedy}", option=OPTION)


class LibraryAttention:
    """What backends over a package share: the cache, which another backend allocates, writes and copies."""

    has_plain_kv = True

    def __init__(self, library: ExternalAttentionPackage, cache: AttentionBackend) -> None:
        """Store the package, and the backend that writes the cache (library_cache)."""
        self._library, self._cache = library, cache

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one zeroed PagedKV for each layer index. Raises ConfigError for what the package cannot read."""
        self._library.check_cache(head_dim, dtype)
        return self._cache.allocate_kv_cache(layers, num_blocks, block_size, kv_heads, head_dim, dtype, device)

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped."""
        self._cache.write_kv(key, value, kv, slot_mapping)

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks, as they were before the call: pairs int [C, 2] of (from, to)."""
        self._cache.copy_blocks(kv, pairs)


def library_cache(device: torch.device) -> AttentionBackend:
    """Return the backend that allocates, writes and copies the cache of a package: Triton's kernels, or torch.

    Both keep heads of a token as written, in tensors of equal strides.
    """
    if not can_use_triton(device):
        return TorchAttention()
    from chairlift.model.attention.triton import TritonAttention

    return TritonAttention()


def apply_sinks(attended: Tensor, logsumexp: Tensor, sinks: Tensor, out: Tensor) -> None:
    """Write attention with sinks into out, from attention without them.

    A sink adds e**sink to the denominator of the softmax, so that all weights become smaller by one factor.

    Args:
        attended: [T, heads, head_dim].
        logsumexp: float32 [T, heads], natural logarithms of the denominators without the sinks.
        sinks: [heads].
        out: [T, heads, head_dim], may be `attended`.
    """
    # d / (d + e**sink) with d = e**logsumexp, in a form that does not overflow.
    torch.mul(attended, torch.sigmoid(logsumexp - sinks.float())[..., None], out=out)


def _sizes(numbers: Sequence[int]) -> str:
    if isinstance(numbers, range):
        return f"{numbers.start} to {numbers[-1]} (multiples of {numbers.step})"
    return ", ".join(map(str, numbers))
