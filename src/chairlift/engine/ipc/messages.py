"""Messages: the protocol between an engine process and its clients, encoded with msgpack, never pickle.

    client ──► engine    Hello  Submit  Abort  WatchSteps  RemoteCall  Ack  ClientHeartbeat  Goodbye
    engine ──► client    EngineHeartbeat (from the start on)  Ready | StartFailed
                         Outputs  RemoteReply  UnknownClient  Goodbye

The types of core are encoded as they are. An error is encoded as (code, message, details) and decoded to its own
class. A frame that cannot be decoded raises WireError: the receiver logs it and continues.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import ChairliftError, Detail, InvalidRequest, error_from_wire
from chairlift.core.load_report import LoadReport
from chairlift.core.request import GenerateRequest
from chairlift.engine.batch_snapshot import BatchSnapshot
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.error_encoding import as_engine_error, encode_value
from chairlift.engine.runner.base import AdapterInfo, RunnerInfo, RunnerSpec
from chairlift.engine.scheduler_and_cache_state import CacheState, SchedulerState
from chairlift.engine.step_stats import StepStats
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

PROTOCOL = 7

ACK_WINDOW = 32
"""Messages with outputs that a client may leave unacknowledged. Later outputs wait in the engine process and go in one
message, so that a slow client gets few large messages instead of falling behind with many small ones."""

REMOTE_METHODS: dict[str, Any] = {
    "load": LoadReport, "scheduler_state": SchedulerState, "cache_state": CacheState, "batch_snapshot": BatchSnapshot,
    "check_integrity": list[str], "flush_cache": int, "warmup": float, "load_adapter": AdapterInfo,
    "drop_adapter": None,
}  # fmt: skip
"""Methods of EngineClient that a client can call, and the types of their results."""

REMOTE_ARGUMENTS: dict[str, Any] = {"load_adapter": tuple[int, str], "drop_adapter": tuple[int]}
"""Types of the arguments of the methods that have any."""


class WireError(Exception):
    """The bytes are not a message of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMessage:
    """The message that a new engine process reads from its standard input.

    Attributes:
        spec: how to build the runner.
        config: the settings of the scheduler.
        enable_prefix_caching: whether full blocks are shared.
        address: the address to listen at, "ipc://...".
        log_level: level of the log, which goes to standard error.
        stop_timeout: seconds that a step in progress gets when the engine stops.
        vocabulary: the tokenizer for structured output; None for no structured output.
        cpus: processors that the process may run on; empty for those of the spawner.
        draft_spec: how to build the runner of a draft model; None without one.
    """

    spec: RunnerSpec
    config: SchedulerConfig
    enable_prefix_caching: bool
    address: str
    log_level: int
    stop_timeout: float
    vocabulary: GrammarTokenizer | None = None
    cpus: tuple[int, ...] = ()
    draft_spec: RunnerSpec | None = None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A client connects.

    Attributes:
        protocol: the client's protocol number.
        interval: seconds between two heartbeats of the engine.
        silence_limit: seconds without a message after which the engine disconnects the client.
    """

    protocol: int
    interval: float
    silence_limit: float


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A new request."""

    request: GenerateRequest


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The client aborts a request, or one choice of it."""

    request_id: str
    index: int | None = None


class WatchSteps(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request for the stats of every step, or the end of it."""

    is_enabled: bool


class RemoteCall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call of a method of REMOTE_METHODS; the reply carries the same number."""

    number: int
    method: str
    arguments: tuple[int | str, ...] = ()


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The client has read `count` more messages with outputs; sent at least every ACK_WINDOW / 2."""

    count: int


class ClientHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The client is alive."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine accepts requests; carries the values that its request limits depend on."""

    pid: int
    info: RunnerInfo
    config: SchedulerConfig


class StartFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine could not start."""

    error: ChairliftError


class EngineHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine process is alive; the counts are those of the last pause between two steps.

    warmup_age is the seconds that a warm-up in progress has taken, 0 without one.
    """

    load: LoadReport
    warmup_age: float = 0.0


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Outputs of one client's requests, one EngineOutput a choice; of several steps for a slow client.

    For a client that watches, also the step stats, never after the outputs of these steps; and how many were dropped
    before them because the client was slow.
    """

    outputs: list[EngineOutput]
    stats: list[StepStats] = []
    num_dropped_stats: int = 0


class RemoteReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The result of a remote call in its own encoding, or the error of the call."""

    number: int
    payload: bytes
    error: ChairliftError | None = None


class UnknownClient(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine has no session for the client: it was silent or too slow, or never sent Hello."""


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The sender disconnects and accepts no more messages."""

    reason: str


ToEngine = Hello | Submit | Abort | WatchSteps | RemoteCall | Ack | ClientHeartbeat | Goodbye
ToClient = Ready | StartFailed | EngineHeartbeat | Outputs | RemoteReply | UnknownClient | Goodbye


def _decode_hook(type_: type, value: Any) -> Any:
    if not issubclass(type_, ChairliftError):
        raise TypeError(f"{type_.__name__} cannot be received from another process")
    code, message, details = msgspec.convert(value, tuple[str, str, dict[str, Detail]])
    return error_from_wire(code, message, details)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=encode_value)
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine, dec_hook=_decode_hook)
_TO_CLIENT = msgspec.msgpack.Decoder(ToClient, dec_hook=_decode_hook)


def encode(message: ToEngine | ToClient | StartMessage) -> bytes:
    """Return the bytes of a message.

    Raises WireError for a value that msgpack cannot encode (half a surrogate pair).
    """
    try:
        return _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"{type(message).__name__} cannot be encoded: {error}") from error


def decode_client_message(frame: bytes) -> ToEngine:
    """Decode a message of a client. Raises WireError."""
    try:
        message: ToEngine = _TO_ENGINE.decode(frame)
    except Exception as error:  # constructors validate too, and raise errors of their own
        raise WireError(f"a message of {len(frame)} bytes to the engine cannot be decoded: {error}") from error
    return message


def decode_engine_message(frame: bytes) -> ToClient:
    """Decode a message of an engine. Raises WireError."""
    try:
        message: ToClient = _TO_CLIENT.decode(frame)
    except Exception as error:
        raise WireError(f"a message of {len(frame)} bytes to a client cannot be decoded: {error}") from error
    return message


def read_start(frame: bytes) -> StartMessage:
    """Decode the start message of a spawner. Raises WireError."""
    try:
        return msgspec.msgpack.decode(frame, type=StartMessage)
    except Exception as error:
        raise WireError(f"a start message of {len(frame)} bytes cannot be decoded: {error}") from error


def encode_reply(number: int, value: Any) -> RemoteReply:
    """Return the reply to a remote call from its result, which may be an exception."""
    if isinstance(value, Exception):
        return RemoteReply(number, b"", as_engine_error(value, "the remote call failed"))
    return RemoteReply(number, _ENCODER.encode(value))


def read_arguments(call: RemoteCall) -> tuple[int | str, ...]:
    """Return the arguments of a remote call. Raises InvalidRequest for a method or arguments that do not exist."""
    if call.method not in REMOTE_METHODS:
        raise InvalidRequest(f"{call.method!r} cannot be called", param="method")
    try:
        arguments: tuple[int | str, ...] = msgspec.convert(call.arguments, REMOTE_ARGUMENTS.get(call.method, tuple[()]))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{call.method!r} has other arguments: {error}", param="arguments") from error
    return arguments


def decode_reply(method: str, payload: bytes) -> Any:
    """Decode the result of a remote call. Raises WireError."""
    try:
        return msgspec.msgpack.decode(payload, type=REMOTE_METHODS[method])
    except Exception as error:
        raise WireError(f"a reply of {len(payload)} bytes to {method!r} cannot be decoded: {error}") from error
