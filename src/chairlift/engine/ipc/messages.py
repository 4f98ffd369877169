"""The messages between an engine's process and its clients, and their codec: msgpack, never pickle.

    client ──► engine    Hello  Submit  Abort  Watch  Ask  Ack  Pulse  Goodbye
    engine ──► client    Beat (while it starts, and then for ever)  Welcome | Failed
                         Outputs  Answer  Stranger  Goodbye

Whatever the words of core are made of is written as it is. An error is written as (code, message, details) and becomes
its own kind again. What cannot be read raises WireError: the reader logs it and reads on.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import msgspec

from chairlift.core.errors import ChairliftError, Detail, EngineDead, error_from_wire
from chairlift.core.load_report import LoadReport
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.runner.base import RunnerInfo, RunnerSpec
from chairlift.engine.stats import CacheState, SchedulerState, StepStats
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

PROTOCOL = 5

ACK_WINDOW = 32
"""So many messages with outputs may be on their way to a client that has not acknowledged them. What comes meanwhile
waits in the engine's process and goes in one message, so that a slow client gets few large ones instead of falling
behind with many small ones."""

REMOTE_METHODS: dict[str, Any] = {
    "load": LoadReport, "scheduler_state": SchedulerState, "cache_state": CacheState, "check_integrity": list[str],
    "flush_cache": int, "warmup": float,
}  # fmt: skip
"""What can be asked (methods of EngineClient), and what the answer is."""


class WireError(Exception):
    """Bytes that are no message of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMessage:
    """What a new engine process reads from its standard input.

    Attributes:
        spec: how to make the runner.
        config: the scheduler's.
        enable_prefix_caching: whether full blocks are shared.
        address: where to listen, "ipc://...".
        log_level: of the process's log, which goes to standard error.
        stop_timeout: seconds for a step in progress when it is time to leave.
        vocabulary: what structured output is made with; None for none.
        cpus: processors that it may run on, for a spawner that keeps off some of them; none for those of the spawner.
    """

    spec: RunnerSpec
    config: SchedulerConfig
    enable_prefix_caching: bool
    address: str
    log_level: int
    stop_timeout: float
    vocabulary: GrammarTokenizer | None = None
    cpus: tuple[int, ...] = ()


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A client introduces itself: seconds between two beats that it wants, seconds that it may be silent."""

    protocol: int
    interval: float
    silence_limit: float


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Queue a request."""

    request: GenerateRequest


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End a request, or one choice of it."""

    request_id: str
    index: int | None = None


class WatchSteps(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From now on the client wants to see every step in numbers, or no more."""

    wanted: bool


class RemoteCall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A question, by its name in QUESTIONS; the answer carries the same number."""

    number: int
    question: str


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """So many more messages with outputs were read; said at least once in half a WINDOW."""

    count: int


class ClientHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The client is alive."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine takes requests; what its limits are made of."""

    pid: int
    info: RunnerInfo
    config: SchedulerConfig


class StartFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine could not start."""

    error: ChairliftError


class EngineHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine's process is alive; the counts are those of the last pause between two steps.

    And the seconds that a warm-up in progress has taken so far, 0 while there is none.
    """

    load: LoadReport
    warmup_age: float = 0.0


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The news of one client's requests: one step's, or of more when it is slow to read; a choice has one Output.

    For a client that watches, also the steps in numbers, whose own news come no earlier; and how many were left out
    before them because the client was slow.
    """

    outputs: list[EngineOutput]
    stats: list[StepStats] = []
    num_dropped_stats: int = 0


class RemoteReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer to a question, encoded by itself; or why there is none."""

    number: int
    payload: bytes
    error: ChairliftError | None = None


class UnknownClient(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine does not know, or no longer knows, whom it hears: it was silent or too slow, or never said hello."""


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The one who says this leaves, and takes no more messages."""

    reason: str


ToEngine = Hello | Submit | Abort | WatchSteps | RemoteCall | Ack | ClientHeartbeat | Goodbye
ToClient = Ready | StartFailed | EngineHeartbeat | Outputs | RemoteReply | UnknownClient | Goodbye


def _detail(value: Any) -> Detail:
    """Make a detail of an error fit: an error must cross whatever it carries."""
    if value is None:
        return None
    if isinstance(value, Integral) and -(2**63) <= int(value) < 2**64:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(value)
    return str(value).encode("utf-8", "replace").decode()


def _written(thing: Any) -> Any:
    if isinstance(thing, ChairliftError):
        message = thing.message.encode("utf-8", "replace").decode()
        return (thing.code, message, {name: _detail(value) for name, value in thing.details.items()})
    if isinstance(thing, Integral):
        return int(thing)
    if isinstance(thing, Real):
        return float(thing)
    raise TypeError(f"{type(thing).__name__} does not cross a process border")


def _read(kind: type, thing: Any) -> Any:
    if not issubclass(kind, ChairliftError):
        raise TypeError(f"{kind.__name__} does not cross a process border")
    code, message, details = msgspec.convert(thing, tuple[str, str, dict[str, Detail]])
    return error_from_wire(code, message, details)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_written)
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine, dec_hook=_read)
_TO_CLIENT = msgspec.msgpack.Decoder(ToClient, dec_hook=_read)


def encode(message: ToEngine | ToClient | StartMessage) -> bytes:
    """Return the bytes of a message. Raises WireError for what msgpack cannot say (half a surrogate pair)."""
    try:
        return _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"{type(message).__name__} cannot be written: {error}") from error


def decode_client_message(frame: bytes) -> ToEngine:
    """Read what a client sent. Raises WireError."""
    try:
        message: ToEngine = _TO_ENGINE.decode(frame)
    except Exception as error:  # constructors check too, and raise whatever fits them
        raise WireError(f"{len(frame)} bytes are no message for an engine: {error}") from error
    return message


def decode_engine_message(frame: bytes) -> ToClient:
    """Read what an engine sent. Raises WireError."""
    try:
        message: ToClient = _TO_CLIENT.decode(frame)
    except Exception as error:
        raise WireError(f"{len(frame)} bytes are no message for a client: {error}") from error
    return message


def read_start(frame: bytes) -> StartMessage:
    """Read what a spawner wrote. Raises WireError."""
    try:
        return msgspec.msgpack.decode(frame, type=StartMessage)
    except Exception as error:
        raise WireError(f"{len(frame)} bytes are no start message: {error}") from error


def answer(number: int, value: Any) -> RemoteReply:
    """Make the answer to a question from the value, or from the error, that came of it."""
    if isinstance(value, Exception):
        return RemoteReply(number, b"", as_engine_error(value, "the engine could not answer"))
    return RemoteReply(number, _ENCODER.encode(value))


def read_answer(question: str, payload: bytes) -> Any:
    """Return the value in an answer. Raises WireError."""
    try:
        return msgspec.msgpack.decode(payload, type=REMOTE_METHODS[question])
    except Exception as error:
        raise WireError(f"{len(payload)} bytes are no answer to {question!r}: {error}") from error


def as_engine_error(error: BaseException, said: str) -> ChairliftError:
    """Return the error itself when it is one of ours, else EngineDead with the sentence and what the error says."""
    return error if isinstance(error, ChairliftError) else EngineDead(f"{said}: {type(error).__name__}: {error}")
