"""RequestOutputKind: what each output of a stream holds, with vLLM's values."""

from enum import IntEnum


class RequestOutputKind(IntEnum):
    """What each output of a stream holds; the values are vLLM's."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # everything, once, at the end
