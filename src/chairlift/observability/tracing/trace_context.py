"""TraceContext: the place of a span in a distributed trace, as the headers of W3C Trace Context carry it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"

SAMPLED = 0x01
RANDOM = 0x02
"""Flag of a trace whose id is random; it is passed on, as level 2 of the specification demands."""

MAX_STATE_MEMBERS = 32
INVALID_VERSION = b"ff"

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_STATE_MEMBER = re.compile(
    r"([a-z0-9][a-z0-9_*/@-]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span of a trace.

    Attributes:
        trace_id: 32 hexadecimal digits, not all zero.
        span_id: 16 hexadecimal digits, not all zero.
        flags: SAMPLED, RANDOM, or both.
        state: value of the header tracestate, "" for none.
    """

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether the spans of the trace are recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The value of the header traceparent."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_trace_context(parents: Sequence[bytes], states: Sequence[bytes]) -> TraceContext | None:
    """Return the context of a request with these values of both headers.

    Returns None for no traceparent, several ones, or one that the specification declares invalid. An invalid
    tracestate is ignored alone.
    """
    match = _TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == INVALID_VERSION or (version == b"00" and more is not None):
        return None
    if not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    return TraceContext(trace_id.decode(), span_id.decode(), int(flags, 16) & (SAMPLED | RANDOM), _state(states))


def _state(values: Sequence[bytes]) -> str:
    """Return the values of all headers tracestate as one; "" for an invalid one."""
    members = [each.strip(" \t") for value in values for each in value.decode("latin-1").split(",")]
    matches = [_STATE_MEMBER.fullmatch(each) for each in members if each]
    keys = {None if match is None else match[1] for match in matches}
    if None in keys or len(keys) < len(matches) or len(matches) > MAX_STATE_MEMBERS:
        return ""
    return ",".join(each for each in members if each)
