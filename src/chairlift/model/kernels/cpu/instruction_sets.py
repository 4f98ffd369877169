"""instruction_sets, selected_instruction_set: the instruction sets that the native kernels can use."""

import logging
import os
from functools import cache

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu.compile import instruction_set_flags, processor_sets
from chairlift.model.kernels.cpu.library import load

log = logging.getLogger(__name__)

INSTRUCTION_SET_VARIABLE = "CHAIRLIFT_CPU_KERNELS"
"""Environment variable: the instruction set to use instead of the best one, for tests and comparisons."""


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets whose kernels are compiled in and run on this processor, the best first.

    Raises ConfigError.
    """
    native = load()
    return tuple(name for name in instruction_set_flags() if native.has(name.encode()))


@cache
def warn_of_missing_sets() -> None:
    """Say once that the library lacks the best kernels of this processor: it was compiled on another machine."""
    best = processor_sets()[0]
    if best not in load().compiled_sets().decode().split():
        log.warning(
            "the native kernels were compiled on a machine without %s: they run with %s, and slower; compile them "
            "again with python -m chairlift.model.kernels.cpu.compile", best, instruction_sets()[0],
        )  # fmt: skip


def selected_instruction_set() -> str:
    """Return the instruction set to compute with. Raises ConfigError if the forced one is not available."""
    available = instruction_sets()
    forced = os.environ.get(INSTRUCTION_SET_VARIABLE)
    if forced is None:
        warn_of_missing_sets()
        return available[0]
    if forced not in available:
        raise ConfigError(f"{INSTRUCTION_SET_VARIABLE}={forced}: this machine has kernels for {', '.join(available)}")
    return forced
