"""DTYPES, torch_dtype, dtype_bytes: the dtypes that models are stored and computed in. Imports torch on demand only."""

from typing import TYPE_CHECKING

from chairlift.core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    import torch

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

DTYPES = tuple(_BYTES)
"""Names of the dtypes, as the option `dtype` and ModelConfig.dtype have them."""

DEFAULT_DTYPE = "float32"
"""Dtype of a model whose config.json and weights name none."""

SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Dtype in a safetensors header -> name in DTYPES."""


NATIVE_COMPUTE_DTYPES = {"bfloat16": "bfloat16", "float16": "float32", "float32": "float32"}
"""Dtype of weights -> dtype of activations and KV cache, where the native kernels of a CPU run a model."""

AUTO_DTYPE = "auto"
"""Value of the option `dtype` for the checkpoint's own dtype."""

DTYPE_ALIASES = {
    "double": "float64", "fp64": "float64", "float": "float32", "fp32": "float32", "bf16": "bfloat16",
    "half": "float16", "fp16": "float16",
}  # fmt: skip
"""Other names that the option `dtype` accepts, as vLLM and torch have them."""

KV_CACHE_DTYPE_ALIASES = {"fp8_e4m3": "fp8"}
"""Other names that the option `kv_cache_dtype` accepts, as vLLM and SGLang have them."""

KV_CACHE_DTYPES = (AUTO_DTYPE, "fp8")
"""Values of the option `kv_cache_dtype`: the model's own dtype, and 8 bits with 4 of exponent (e4m3)."""

FLOAT8_CAPABILITY = 89
"""Least compute capability, times ten, of NVIDIA GPUs that convert and multiply 8-bit floats: Ada, before Hopper."""


FLOAT8_MULTIPLE = 16
"""Sizes of a weight that products of 8-bit floats take: multiples of this number."""


def canonical_dtype(option: str) -> str:
    """Return the name in DTYPES or KV_CACHE_DTYPES of an alias; any other text is returned unchanged."""
    return (DTYPE_ALIASES | KV_CACHE_DTYPE_ALIASES).get(option, option)


def check_kv_cache_dtype(option: str) -> None:
    """Raise ConfigError unless the option `kv_cache_dtype` is in KV_CACHE_DTYPES."""
    if option not in KV_CACHE_DTYPES:
        known, aliases = ", ".join(KV_CACHE_DTYPES), ", ".join(KV_CACHE_DTYPE_ALIASES)
        message = f"kv_cache_dtype {option!r} is unknown; known are {known}, and the alias {aliases}"
        raise ConfigError(message, option="kv_cache_dtype")


def check_dtype(option: str) -> None:
    """Raise ConfigError unless the option `dtype` is "auto" or in DTYPES."""
    if option not in (AUTO_DTYPE, *DTYPES):
        known, aliases = ", ".join((AUTO_DTYPE, *DTYPES)), ", ".join(DTYPE_ALIASES)
        raise ConfigError(f"dtype {option!r} is unknown; known are {known}, and the aliases {aliases}", option="dtype")


def parse_dtype(value: object) -> str | None:
    """Return the name in DTYPES of a dtype in config.json, or None if it is not supported."""
    name = value.removeprefix("torch.") if isinstance(value, str) else None
    return name if name in DTYPES else None


def resolve_dtype(option: str, stored: str | None) -> str:
    """Return the dtype to compute in: that of the option, or for "auto" the `stored` one, else DEFAULT_DTYPE."""
    if option != AUTO_DTYPE:
        return option
    return stored or DEFAULT_DTYPE


def torch_dtype(name: str | None) -> "torch.dtype":
    """Return the torch dtype of a name in DTYPES. Raises ModelError."""
    import torch

    dtype: torch.dtype = getattr(torch, _known(name))
    return dtype


def dtype_name(dtype: "torch.dtype") -> str:
    """Return the name in DTYPES of a torch dtype. Raises ModelError for one that models are not computed in."""
    return _known(str(dtype).removeprefix("torch."))


def dtype_bytes(name: str | None) -> int:
    """Return the bytes of one element of a dtype in DTYPES. Raises ModelError."""
    return _BYTES[_known(name)]


def kv_cache_dtype_bytes(option: str, dtype: str | None) -> int:
    """Return the bytes of one element of the KV cache, by the option `kv_cache_dtype` and the model's dtype."""
    return dtype_bytes(dtype) if option == AUTO_DTYPE else 1


def _known(name: str | None) -> str:
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is unknown; known are {', '.join(DTYPES)}")
    return str(name)
