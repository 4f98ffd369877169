"""ClientResponse: what the client has of its response, and what another replica needs to go on with it."""

from typing import Any

from chairlift.router.attempts.actions import ResponseMode
from chairlift.router.attempts.attempt import Attempt
from chairlift.router.attempts.chunks import Chunk, ChunkKind, ChunkRewriter
from chairlift.router.attempts.events import ReplicaPicked
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.raw_response_model_and_usage import UsageReader, rename_model, rename_models
from chairlift.router.attempts.resume import DeliveredTokens


class ClientResponse:
    """One response, which several attempts may bring.

    Attributes:
        fields: what the client asked for.
        delivered: the tokens that the client has; of a response that is not streamed, those that are certain.
        has_sent: whether the client has received a byte, so that the response can only go on or fail.
        fingerprint: of the replica that brought the first token; "" if no replica can go on.
        is_paused: whether a replica was not read for a time, because the client was slow.
    """

    def __init__(self, fields: GenerationFields) -> None:
        self.fields = fields
        self.delivered = DeliveredTokens(fields.num_choices, fields.resume)
        self.has_sent = self.is_paused = False
        self.fingerprint = ""
        self._first_token_at: float | None = None
        self._last_token_at: float | None = None
        self._usage = UsageReader()
        self._rewriter = ChunkRewriter(keeps_token_ids=fields.returns_token_ids, model=fields.alias)

    @property
    def has_progress(self) -> bool:
        """Whether the next attempt resumes."""
        return self.delivered.has_progress

    @property
    def required_fingerprint(self) -> str:
        """What a replica must report to go on with the response; "" if any replica may start it."""
        return self.fingerprint if self.has_progress else ""

    @property
    def lacks_only_end(self) -> bool:
        """Whether only the event that ends a stream is missing."""
        delivered = self.delivered
        return self.has_sent and delivered.are_all_finished and delivered.has_usage >= self.fields.includes_usage

    @property
    def mean_inter_token_seconds(self) -> float | None:
        """Mean time between the tokens of a choice as they came from the replicas; None without two of a stream.

        Each event of a response that is not parsed counts as a token. What came while a replica was not read says
        nothing of the replica.
        """
        num_tokens = self.delivered.num_tokens + self._usage.num_events
        num_gaps = num_tokens / max(1, self.fields.num_choices) - 1
        first, last = self._first_token_at, self._last_token_at
        if not self.fields.is_streamed or self.is_paused or num_gaps <= 0 or first is None or last is None:
            return None
        return (last - first) / num_gaps

    def used_tokens(self, prompt_tokens: int) -> int:
        """Return the tokens that the response has cost so far; `prompt_tokens` is an estimate of the prompt's.

        A response that is not parsed costs what its `usage` says, else one token for each event of a stream.
        """
        if self._usage.total_tokens is not None:
            return self._usage.total_tokens
        if not (self.has_sent or self.has_progress):
            return 0
        return prompt_tokens + self.delivered.num_tokens + self._usage.num_events

    def is_resumable_on(self, replica: ReplicaPicked) -> bool:
        """Return whether another replica could go on with what this one brings."""
        return self.fields.is_resumable and replica.is_resumable and replica.fingerprint != ""

    def may_continue_on(self, replica: ReplicaPicked) -> bool:
        """Return whether a replica can start the response, or go on with it."""
        return not self.has_progress or (self.is_resumable_on(replica) and replica.fingerprint == self.fingerprint)

    def mode(self, *, is_resumable: bool) -> ResponseMode:
        """Return how the response of an attempt is read."""
        if self.fields.is_streamed:
            return ResponseMode.TOKENS if is_resumable else ResponseMode.OPAQUE
        return ResponseMode.PROGRESS if is_resumable else ResponseMode.WHOLE

    def members(self) -> dict[str, Any]:
        """Return what the body of the next attempt has behind the client's members."""
        members: dict[str, Any] = {}
        if self.fields.seed is not None:
            members["seed"] = self.fields.seed
        if self.fields.is_streamed and not self.fields.returns_token_ids:
            members["return_token_ids"] = True
        if self.has_progress:
            members["resume"] = self.delivered.resume_field()
            members["resume_fingerprint"] = self.fingerprint
        return members

    def is_held(self, attempt: Attempt, chunk: Chunk) -> bool:
        """Hold a chunk without new tokens, such as a role, and return whether it is held or a repetition.

        A held chunk belongs to tokens that follow it: if the attempt breaks before, the next one brings it again.
        Raises BadChunk.
        """
        if chunk.kind is ChunkKind.OPAQUE:
            return False
        if not self.delivered.is_new(chunk):
            return True
        if chunk.kind is ChunkKind.CHOICE and not chunk.token_ids and not chunk.is_last:
            attempt.held.setdefault(chunk.choice_index, []).append(chunk)
            return True
        return False

    def append(self, attempt: Attempt, chunk: Chunk) -> bytes:
        """Add a chunk that is_held let pass, after its attempt noted when it came; return its bytes for the client."""
        self._last_token_at = attempt.last_token_at
        self._first_token_at = self._last_token_at if self._first_token_at is None else self._first_token_at
        if chunk.kind is ChunkKind.OPAQUE:
            self._usage.read(chunk.payload)
            is_renamed = self.fields.alias and attempt.mode is ResponseMode.OPAQUE  # its chunks are whole events
            return rename_models(chunk.payload, self.fields.alias) if is_renamed else chunk.payload
        held = attempt.held.pop(chunk.choice_index, ()) if attempt.held else ()
        self.delivered.add(chunk)
        if not held:
            return self._rewriter.rewrite(chunk)
        return b"".join([self._rewriter.rewrite(each) for each in (*held, chunk)])

    def flush(self, attempt: Attempt) -> bytes:
        """Return the bytes of the attempt's held chunks: nothing will follow them."""
        return b"".join([self._rewriter.rewrite(chunk) for chunk in attempt.take_held()])

    def end(self, attempt: Attempt, payload: bytes) -> bytes:
        """Return the last bytes for the client: the event that ends a stream, or the whole body. Raises BadChunk."""
        if attempt.mode is ResponseMode.PROGRESS:
            payload = self.delivered.merge_logprobs(payload)
        # A response that was parsed has counted its tokens already.
        if not self.delivered.num_tokens:
            self._usage.read(payload)
        if self.fields.alias:
            payload = rename_model(payload, self.fields.alias)
        return self.flush(attempt) + payload

    def restart(self) -> None:
        """Forget the progress, none of which the client has; any replica may take the request then."""
        assert not self.has_sent, "the client has a part of the response"
        self.delivered.clear()
        self.fingerprint = ""
        self._first_token_at = None
