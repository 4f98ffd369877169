"""The compiled kernels as Python sees them: finding the library, its functions and its structs.

The structs mirror those of the headers field for field; tests compare their sizes with what the library says.
"""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu.compile import LIBRARY, instruction_set_flags

BFLOAT16, INT8_CHANNEL, INT8_GROUP = 0, 1, 2
PANEL, GROUP, KEY_TILE = 64, 32, 16
FLOATS, HALVES, QUANTIZED = 0, 1, 2
STORE, ADD, GATED = 0, 1, 2
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_pytorch_tanh": 2}
BELOW, GATES, UPS = 0, 1, 2
NO_MEMORY, NO_SUCH_TOKEN = -1, -2

FORCED_SET = "CHAIRLIFT_CPU_KERNELS"
"""Environment variable: the instruction set whose kernels are taken, for tests and for measuring."""

OTHER_LIBRARY = "CHAIRLIFT_CPU_LIBRARY"
"""Environment variable: the library's file, where it is not the one beside this module: one with sanitizers."""


class Weight(ctypes.Structure):
    """kernels.h: Weight."""

    _fields_ = (
        ("outputs", c_int32), ("inputs", c_int32), ("panels", c_int32), ("steps", c_int32), ("kind", c_int32),
        ("data", c_void_p), ("scales", c_void_p), ("group_scales", c_void_p),
    )  # fmt: skip


class StepGroup(ctypes.Structure):
    """step.h: StepGroup."""

    _fields_ = (("block_table", c_void_p), ("max_blocks", c_int32), ("slots", c_void_p))


class StepCache(ctypes.Structure):
    """step.h: StepCache."""

    _fields_ = (("keys", c_void_p), ("values", c_void_p))


class Step(ctypes.Structure):
    """step.h: Step."""

    _fields_ = (
        ("tokens", c_int32), ("sequences", c_int32), ("ids", c_void_p), ("positions", c_void_p), ("cu_q", c_void_p),
        ("seq_lens", c_void_p), ("groups", POINTER(StepGroup)), ("caches", POINTER(StepCache)),
    )  # fmt: skip


class Plan(ctypes.Structure):
    """step.h: Plan."""

    _fields_ = (
        ("rows", c_int32), ("tokens", c_int32), ("samples", c_int32), ("numbers", c_void_p),
        ("last_sampled", c_void_p), ("blocks", c_void_p),
        ("groups", c_int32), ("num_slots", c_int32), ("width", c_int32), ("block_size", c_int32),
        ("vocab_size", c_int32), ("writes", c_int32), ("caches", POINTER(StepCache)), ("refused", c_int32),
    )  # fmt: skip


class HeadRow(ctypes.Structure):
    """kernels.h: HeadRow."""

    _fields_ = (("logits", c_void_p), ("allowed", c_void_p))


class HeadCall(ctypes.Structure):
    """decoder.h: HeadCall."""

    _fields_ = (
        ("weight", POINTER(Weight)), ("wanted", c_void_p), ("words", c_int32), ("values", c_void_p), ("ids", c_void_p),
    )  # fmt: skip


class TruncationStruct(ctypes.Structure):
    """draw.h: Rule."""

    _fields_ = (
        ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("number", c_double), ("top_k", c_int64),
    )  # fmt: skip


_int, _float, _pointer = c_int, c_float, c_void_p
_SIGNATURES = {
    "has": (c_int, c_char_p),
    "sizes": (None, POINTER(c_size_t)),
    "pool_new": (_pointer, POINTER(c_int32), _int),
    "pool_free": (None, _pointer),
    "pack": (_int, _pointer, POINTER(Weight), _pointer, _int, _int, _int, POINTER(c_double)),
    "decoder_new": (_pointer, _pointer, c_char_p),
    "decoder_free": (None, _pointer),
    "add_buffer": (_int, _pointer, _int, _int, _int),
    "add_embed": (None, _pointer, _pointer, POINTER(Weight), _int, _float, _int),
    "add_norm": (None, _pointer, _int, _pointer, _float, _int, _int, _int),
    "add_quantize": (None, _pointer, _int, _int),
    "add_linear": (None, _pointer, _int, POINTER(Weight), _pointer, _int, _int, POINTER(Weight), _int),
    "add_heads": (None, *[_pointer] + [_int] * 8, _pointer, _float, _pointer, _pointer),
    "add_attend": (None, *[_pointer] + [_int] * 8, _float, _float, _int, _pointer),
    "reserve": (_int, _pointer, _int),
    "run": (_int, _pointer, POINTER(Step)),
    "run_plan": (_int, _pointer, POINTER(Plan), _int, POINTER(HeadCall)),
    "buffer": (_pointer, _pointer, _int, POINTER(c_size_t)),
    "head": (_int, _pointer, _pointer, c_size_t, _int, POINTER(HeadCall)),
    "draw": (_int, _pointer, c_char_p, _pointer, _int, _int, c_size_t, _pointer, _pointer),
    "likeliest": (_int, _pointer, c_char_p, _pointer, _int, _int, c_size_t, _int, _pointer, _pointer),
    "log_sums": (_int, _pointer, c_char_p, _pointer, _int, _int, c_size_t, _pointer),
    "spent": (_int, _pointer, POINTER(c_char_p), POINTER(c_double), _int),
}
"""Function, less "chairlift_" -> result and arguments."""


class NativeLibrary:
    """The library: its functions by their names, less "chairlift_"."""

    def __init__(self, path: Path) -> None:
        """Load it. Raises OSError, and AttributeError where it is another version's."""
        loaded = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"chairlift_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> "ctypes._NamedFuncPointer":
        raise AttributeError(f"the kernels have no function {name}")


@cache
def load() -> NativeLibrary:
    """Return the library. Raises ConfigError that says why there is none."""
    path = Path(__file__).parent / os.environ.get(OTHER_LIBRARY, LIBRARY)
    if not path.exists():
        raise ConfigError(
            "the native kernels are not compiled; install a C++ compiler, then run "
            "python -m chairlift.model.kernels.cpu.compile",
            option="kernels",
        )
    try:
        return NativeLibrary(path)
    except (OSError, AttributeError) as error:
        raise ConfigError(f"the native kernels cannot be loaded: {error}", option="kernels") from error


def instruction_sets() -> tuple[str, ...]:
    """Return those whose kernels are here and run on this processor, the best first. Raises ConfigError."""
    native = load()
    return tuple(name for name in instruction_set_flags() if native.has(name.encode()))


def selected_instruction_set() -> str:
    """Return the instruction set to compute with. Raises ConfigError for a forced one that is not here."""
    here = instruction_sets()
    forced = os.environ.get(FORCED_SET)
    if forced is None:
        return here[0]
    if forced not in here:
        raise ConfigError(f"{FORCED_SET}={forced}: this machine has kernels for {', '.join(here)}")
    return forced
