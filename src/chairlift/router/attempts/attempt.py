"""Attempt and AttemptLimits: the state of one attempt of a request, and the limits of all of them."""

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from chairlift.core.errors import ConfigError
from chairlift.router.attempts.actions import RecordOutcome, ResponseMode
from chairlift.router.attempts.chunks import Chunk
from chairlift.router.attempts.events import AttemptEvent, ReplicaPicked, TimerKind
from chairlift.router.health.breaker import HealthOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLimits:
    """Limits of the attempts of one request.

    Attributes:
        max_attempts: failed attempts after which the request fails. Refused connections and drains do not count.
        connect_timeout_seconds: for TCP and TLS.
        first_token_timeout_seconds: from sending the request, or a Chairlift server's comment, to its first token.
        inter_token_timeout_seconds: between two tokens, or from a Chairlift server's comment to the next token.
        resume_wait_seconds: how long a response that has begun may wait for a replica that is not full.
        replacement_wait_seconds: how long a request whose replicas are all lost may wait for another one.
        counts_rejections: whether a replica that is full counts as a failed attempt before the first token.
        deadline_grace_seconds: how long after the request's deadline its replica may still report that it has passed.
    """

    max_attempts: int = 3
    connect_timeout_seconds: float = 2.0
    first_token_timeout_seconds: float = 60.0
    inter_token_timeout_seconds: float = 30.0
    resume_wait_seconds: float = 10.0
    replacement_wait_seconds: float = 0.0
    deadline_grace_seconds: float = 1.0
    counts_rejections: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be at least 1, got {self.max_attempts}")
        for name in ("connect_timeout_seconds", "first_token_timeout_seconds", "inter_token_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name):g}")
        for name in ("resume_wait_seconds", "replacement_wait_seconds", "deadline_grace_seconds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name):g}")


class AttemptPhase(Enum):
    """How far an attempt is."""

    PICKING = auto()
    CONNECTING = auto()
    SENT = auto()
    STREAMING = auto()  # has a token


class AttemptPurpose(StrEnum):
    """Why an attempt was made."""

    FIRST = auto()
    RETRY = auto()
    HEDGE = auto()
    HANDOVER = auto()  # the replica of another attempt drains
    MOVE = auto()  # the request waits at another replica, and this one has become ready

    def label(self, *, has_progress: bool) -> str:
        """Return the name for people: a retry that goes on after tokens is a "resume"."""
        return "resume" if self is AttemptPurpose.RETRY and has_progress else self.value


@dataclass(slots=True)
class Attempt:
    """One attempt that is open.

    Attributes:
        number: counts the attempts of the request from 1.
        purpose: why it was made.
        phase: how far it is.
        picks_any_replica: whether its pick allowed any fingerprint.
        replica: the replica; None while it is picked.
        is_resumable: whether another replica can go on with what this one has delivered.
        mode: how its response is read.
        timer: the timer that runs for it.
        has_retry_permit: whether it counts in the retry budget.
        held: chunks of each choice that belong to tokens which have not arrived.
        frozen: its events since a drain gave it away; None while they count.
        sent_at: when the request was sent.
        first_token_at: when its first token came.
        last_token_at: when its last token came.
        last_comment_at: when the last comment came.
        num_tokens: tokens that it brought.
        failure: why it has failed, "" if it has not.
    """

    number: int
    purpose: AttemptPurpose
    phase: AttemptPhase = AttemptPhase.PICKING
    picks_any_replica: bool = False
    replica: ReplicaPicked | None = None
    is_resumable: bool = False
    mode: ResponseMode = ResponseMode.WHOLE
    timer: TimerKind | None = None
    has_retry_permit: bool = False
    held: dict[int, list[Chunk]] = field(default_factory=dict)
    frozen: list[AttemptEvent] | None = None
    sent_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    last_comment_at: float | None = None
    num_tokens: int = 0
    failure: str = ""

    @property
    def is_failure_counted(self) -> bool:
        """Whether its failure is one of the request; a handover, and a move before its token, only offered to help."""
        is_waiting_move = self.purpose is AttemptPurpose.MOVE and self.phase is not AttemptPhase.STREAMING
        return self.purpose is not AttemptPurpose.HANDOVER and not is_waiting_move

    @property
    def last_sign_at(self) -> float | None:
        """When its replica last showed that it works on the request: by a token, or as a Chairlift server by a comment.

        None before both.

        A Chairlift server whose engine hangs ends the request or its comments. Other servers may send them for ever.
        """
        comment_at = self.last_comment_at if self.replica is not None and self.replica.is_resumable else None
        return max((time for time in (self.last_token_at, comment_at) if time is not None), default=None)

    def record_tokens(self, num_tokens: int, now: float) -> None:
        """Note when tokens came."""
        if self.first_token_at is None:
            self.first_token_at, self.phase = now, AttemptPhase.STREAMING
        self.last_token_at = now
        self.num_tokens += num_tokens

    def take_held(self) -> list[Chunk]:
        """Return the held chunks of all choices, and hold none."""
        chunks = [chunk for held in self.held.values() for chunk in held]
        self.held.clear()
        return chunks

    def outcome(self, outcome: HealthOutcome) -> RecordOutcome:
        """Return the report to the replica's health."""
        assert self.replica is not None, "the attempt has no replica"
        first = inter = None
        if self.first_token_at is not None and self.last_token_at is not None and self.sent_at is not None:
            first = self.first_token_at - self.sent_at
            # n tokens have n - 1 gaps between them.
            if self.num_tokens > 1:
                inter = (self.last_token_at - self.first_token_at) / (self.num_tokens - 1)
        return RecordOutcome(
            self.number, self.replica.replica_id, self.replica.incarnation, outcome, first, inter,
            self.first_token_at, self.failure,
        )  # fmt: skip
