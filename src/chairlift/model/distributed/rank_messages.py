"""Messages between rank 0 and the processes of the other ranks: msgpack structs with their length before them.

rank 0 ─► rank   StartRank, then each call of the runner in its order: Launch, Masks, Collect, Warmup, ReleaseBlocks
rank ─► rank 0   Loading, Started or RankStartFailed; then Collected for each collected step, CallFailed for each error;
                 PeersLost at the end of a rank that has lost the others; Progress at all times
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from chairlift.core.errors import ChairliftError, Detail, error_from_wire
from chairlift.engine.ipc.error_encoding import as_engine_error, encode_value, error_fields
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.model.config.runner_config import RunnerConfig

LENGTH_BYTES = 4


class StartRank(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a rank must know to start.

    Attributes:
        config: options of its runner; the device is that of the rank.
        rank, num_ranks: which part of the model it computes.
        meeting_file: path of the file at which the ranks meet.
        log_level: level of its log, which goes to standard error.
        import_path: sys.path of rank 0, so that both find the same logits processors; empty leaves the rank's own.
        beat_seconds: seconds between two reports of its progress.
    """

    config: RunnerConfig
    rank: int
    num_ranks: int
    meeting_file: str
    log_level: int
    import_path: tuple[bytes, ...] = ()
    beat_seconds: float = 1.0


class Launch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Runner.launch."""

    plan: StepPlan


class Masks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Runner.supply_masks."""

    step_id: int
    masks: TokenMasks


class Collect(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Runner.collect."""


class Warmup(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Runner.warmup."""


class ReleaseBlocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """ReleasesBlocks.release_blocks."""

    num_kept: int
    moves: Sequence[tuple[int, int]] = ()


class Loading(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The rank has imported its modules and connects to the others."""


class Started(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The rank's runner has started."""


class RankStartFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The rank's runner could not start; the process ends."""

    code: str
    message: str
    details: dict[str, Detail]

    @classmethod
    def of(cls, error: BaseException) -> "RankStartFailed":
        """Return the message about an error of any kind."""
        return cls(*error_fields(as_engine_error(error, "a rank did not start")))

    def error(self) -> ChairliftError:
        """Return the error."""
        return error_from_wire(self.code, self.message, self.details)


class Collected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The rank collected a step.

    Attributes:
        call: number of the call, from 1.
        digest: digest of the sampled tokens and the failed rows.
    """

    call: int
    digest: int


class CallFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call raised an error.

    Attributes:
        call: number of the call, from 1.
        num_collectives: collectives that the rank has called since its start.
        reason: the error, for people.
    """

    call: int
    num_collectives: int
    reason: str


class PeersLost(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A collective of the rank has failed, or it could not connect; the process ends.

    Another rank that has ended is the likely cause.
    """

    reason: str


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The rank's process runs.

    Attributes:
        num_collectives: collectives that it has called since its start.
    """

    num_collectives: int


Call = Launch | Masks | Collect | Warmup | ReleaseBlocks
ToRank = StartRank | Call
FromRank = Loading | Started | RankStartFailed | Collected | CallFailed | PeersLost | Progress


def _encode_hook(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, np.ascontiguousarray(value, np.int32).tobytes())
    return encode_value(value)


def _decode_hook(type_: Any, value: Any) -> Any:
    shape, data = msgspec.convert(value, tuple[tuple[int, ...], bytes])
    return np.frombuffer(bytearray(data), np.int32).reshape(shape)  # a copy, because torch wants writable memory


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_TO_RANK = msgspec.msgpack.Decoder(ToRank, dec_hook=_decode_hook)
_FROM_RANK = msgspec.msgpack.Decoder(FromRank)


def encode(message: ToRank | FromRank) -> bytes:
    """Return the bytes of a message, their length first."""
    content = _ENCODER.encode(message)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def decode_to_rank(content: bytes) -> ToRank:
    """Decode a message of rank 0, without its length."""
    message: ToRank = _TO_RANK.decode(content)
    return message


def decode_from_rank(content: bytes) -> FromRank:
    """Decode a message of another rank, without its length."""
    message: FromRank = _FROM_RANK.decode(content)
    return message
