"""RequestStatus: the status of a request, as the integers of transformers' continuous batching."""

from enum import IntEnum


class RequestStatus(IntEnum):
    """Status of a request. The first five are transformers' own; every one from FINISHED on is an end."""

    PENDING = 0
    PREFILLING = 1
    DECODING = 2
    FINISHED = 3
    FAILED = 4
    CANCELLED = 5
