"""NativeLibrary: the functions of the compiled kernels, loaded by ctypes."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu.compile import LIBRARY
from chairlift.model.kernels.cpu.kernel_structs import (
    ExpertsCall,
    LMHeadCall,
    Plan,
    RecurrenceShape,
    RouterSettings,
    Step,
    Weight,
)

BFLOAT16, INT8_CHANNEL, INT8_GROUP, FLOAT32, FLOAT16, INT4_GROUP = range(6)
Q4_0, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, INT6_GROUP = range(6, 17)
PANEL, GROUP, KEY_TILE = 64, 32, 16
F32, BF16, QUANTIZED = 0, 1, 2
STORE, ADD, GATED = 0, 1, 2
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_pytorch_tanh": 2}
EXPERT_ACTIVATIONS = {**ACTIVATIONS, "clamped_swiglu": 3}
SCORINGS = {"softmax": 0, "top_softmax": 1, "sigmoid": 2}
STACKED, GATES, UPS = 0, 1, 2
DELTA_RULE, STATE_SPACE = 0, 1
STATE_WIDTH, MAX_KEY_DIM = 16, 256
OUT_OF_MEMORY, INVALID_TOKEN = -1, -2

LIBRARY_VARIABLE = "CHAIRLIFT_CPU_LIBRARY"
"""Environment variable: the library file to use instead of the one beside this module, such as one with sanitizers."""

_int, _float, _pointer = c_int, c_float, c_void_p
_SIGNATURES = {
    "has": (c_int, c_char_p),
    "compiled_sets": (c_char_p,),
    "sizes": (None, POINTER(c_size_t)),
    "pool_new": (_pointer, POINTER(c_int32), _int),
    "pool_renew_threads": (_int, _pointer, _int),
    "pool_free": (None, _pointer),
    "pack": (_int, _pointer, POINTER(Weight), _pointer, _int, _int, _int, _int, POINTER(c_double)),
    "pack_blocks": (
        c_int64, _pointer, POINTER(Weight), _pointer, c_size_t, _pointer, _int, _int, _int,
    ),
    "decoder_new": (_pointer, _pointer, c_char_p),
    "decoder_free": (None, _pointer),
    "add_buffer": (_int, _pointer, _int, _int, _int),
    "add_buffer_of_pairs": (_int, _pointer, _int, _int, _int, _int),
    "add_embed": (None, _pointer, _pointer, _int, POINTER(Weight), _int, _float, _int),
    "add_norm": (None, _pointer, _int, _pointer, _float, _int, _int, _int),
    "add_sum_norm": (None, _pointer, _int, _pointer, _float, _int, _int, _float, _int),
    "add_quantize": (None, _pointer, _int, _int),
    "add_linear": (None, _pointer, _int, POINTER(POINTER(Weight)), _int, _pointer, _int, _int, POINTER(Weight), _int),
    "add_rope_cache": (
        None, *[_pointer] + [_int] * 8, c_size_t, _int, _int, _pointer, _float, _int, _int, *[_pointer] * 3,
    ),
    "add_attention": (None, *[_pointer] + [_int] * 8, c_size_t, _float, _float, _int, _pointer),
    "add_gate": (None, *[_pointer] + [_int] * 4),
    "add_activation": (None, *[_pointer] + [_int] * 6),
    "add_router": (_int, _pointer, POINTER(RouterSettings), _int),
    "add_experts": (_int, _pointer, _int, POINTER(ExpertsCall)),
    "add_convolution": (None, *[_pointer] + [_int] * 6, _pointer, _pointer, _int),
    "add_recurrence": (None, *[_pointer] + [_int] * 4, POINTER(RecurrenceShape)),
    "add_gated_norm": (None, *[_pointer] + [_int] * 5, _pointer, _float, _int, _int, _int),
    "reserve": (_int, _pointer, _int),
    "run": (_int, _pointer, POINTER(Step)),
    "run_on": (_int, _pointer, POINTER(Step), _int, _pointer, c_size_t, _int, _pointer, c_size_t),
    "multiply": (
        _int, _pointer, c_char_p, POINTER(Weight), _pointer, _int, _int, _pointer, _int, c_size_t, _int, _pointer,
        c_size_t,
    ),
    "rms_norm": (
        _int, _pointer, c_char_p, _pointer, _int, c_size_t, _int, _int, _pointer, _float, _pointer, c_size_t,
    ),
    "store_kv": (
        _int, *[_pointer] * 3, *[_int] * 4, c_size_t, _pointer, c_int64, c_int64, _pointer, c_int64, c_int64, _pointer,
        _int,
    ),
    "run_plan": (_int, _pointer, POINTER(Plan), _int, POINTER(LMHeadCall)),
    "buffer": (_pointer, _pointer, _int, POINTER(c_size_t)),
    "lm_head": (_int, _pointer, _pointer, _int, c_size_t, _int, POINTER(LMHeadCall)),
    "peak_rate": (c_double, c_char_p, _int),
    "sample": (_int, _pointer, c_char_p, _pointer, _int, _int, c_size_t, _pointer, _pointer),
    "top_k": (_int, _pointer, c_char_p, _pointer, _int, _int, c_size_t, _int, _pointer, _pointer),
    "logsumexp": (_int, _pointer, c_char_p, _pointer, _int, _int, c_size_t, _pointer),
    "op_seconds": (_int, _pointer, POINTER(c_char_p), POINTER(c_double), _int),
}  # fmt: skip
"""Name of a function without its prefix "chairlift_" -> types of its result and its arguments."""


class NativeLibrary:
    """The library. Its attributes are its functions, named without their prefix "chairlift_"."""

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises OSError if it cannot be loaded, and AttributeError if it lacks a function: it belongs to another version.
        """
        loaded = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"chairlift_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> "ctypes._NamedFuncPointer":
        raise AttributeError(f"the native kernels have no function {name}")


@cache
def load() -> NativeLibrary:
    """Load the library once per process.

    Raises ConfigError, with the remedy, if it is not compiled, cannot be loaded or belongs to another version.
    """
    path = Path(__file__).parent / os.environ.get(LIBRARY_VARIABLE, LIBRARY)
    if not path.exists():
        raise ConfigError(
            "the native kernels are not compiled; install a C++ compiler, then run "
            "python -m chairlift.model.kernels.cpu.compile",
            option="kernels",
        )
    try:
        return NativeLibrary(path)
    except (OSError, AttributeError) as error:
        raise ConfigError(
            f"the native kernels cannot be loaded: {error}; compile them again with "
            "python -m chairlift.model.kernels.cpu.compile",
            option="kernels",
        ) from error


class DecoderHandle:
    """Owns a decoder of the library.

    Attributes:
        address: the decoder, for the library's functions.
    """

    def __init__(self, pool: int, instruction_set: str) -> None:
        """Make a decoder without operations that runs in a thread pool of the library."""
        self.address: int = load().decoder_new(pool, instruction_set.encode())
        assert self.address, f"the selected instruction set {instruction_set} is not available"

    def __del__(self) -> None:
        # __init__ may have failed before it set the attribute.
        if address := getattr(self, "address", None):
            load().decoder_free(address)
