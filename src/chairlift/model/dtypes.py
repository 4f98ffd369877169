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


AUTO_DTYPE = "auto"
"""Value of the option `dtype` for the checkpoint's own dtype."""

DTYPE_ALIASES = {
    "double": "float64", "fp64": "float64", "float": "float32", "fp32": "float32", "bf16": "bfloat16",
    "half": "float16", "fp16": "float16",
}  # fmt: skip
"""Other names that the option `dtype` accepts, as vLLM and torch have them."""


def canonical_dtype(option: str) -> str:
    """Return the name in DTYPES of an alias; any other text is returned unchanged."""
    return DTYPE_ALIASES.get(option, option)


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


def _known(name: str | None) -> str:
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is unknown; known are {', '.join(DTYPES)}")
    return str(name)
