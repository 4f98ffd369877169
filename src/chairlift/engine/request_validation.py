"""ValidatedRequest: a request that an engine with these RequestLimits can serve; made by validate_request only."""

from dataclasses import dataclass

from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, RequestTooLarge, TokenOutOfRange
from chairlift.core.numeric_limits import MAX_TIMEOUT_SECONDS
from chairlift.core.request import GenerateRequest
from chairlift.engine.request_limits import RequestLimits

MAX_REQUEST_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class ValidatedRequest:
    """A request that meets the limits. Only `validate_request` makes one, so the engine loop checks nothing again.

    It is never sent to another process: the engine process validates the plain request that it receives.

    Attributes:
        request: the request.
        limits: the limits that it meets.
    """

    request: GenerateRequest
    limits: RequestLimits

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.request.request_id


def validate_request(request: GenerateRequest | ValidatedRequest, limits: RequestLimits) -> ValidatedRequest:
    """Validate a request once: one that was validated against equal limits is returned unchanged.

    Raises InvalidRequest (or a subclass) with the reason if an engine with these limits can never serve the request.
    """
    if isinstance(request, ValidatedRequest):
        if request.limits == limits:
            return request
        request = request.request
    _check(request, limits)
    return ValidatedRequest(request, limits)


def _check(request: GenerateRequest, limits: RequestLimits) -> None:
    if not 0 < len(request.request_id) <= MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters, got {len(request.request_id)}",
            param="request_id",
        )
    prompt, max_tokens = request.prompt_token_ids, request.params.max_tokens
    if not prompt:
        raise InvalidRequest("prompt must have at least one token, got none", param="prompt")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < limits.vocab_size:
            raise TokenOutOfRange(token, limits.vocab_size)
    request.params.check_vocabulary(limits.vocab_size)
    for tokens in request.resume:
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < limits.vocab_size:
                raise TokenOutOfRange(token, limits.vocab_size, "resume")
    predicted = request.predicted_token_ids
    for token in (min(predicted, default=0), max(predicted, default=0)):
        if not 0 <= token < limits.vocab_size:
            raise TokenOutOfRange(token, limits.vocab_size, "prediction")
    for name, _ in request.params.logits_processors:
        if name not in limits.logits_processors:
            known = ", ".join(limits.logits_processors) or "none"
            raise InvalidRequest(
                f"there is no logits processor {name!r}; available are {known}", param="logits_processors"
            )
    assert max_tokens is not None, "the engine accepts only parameters whose defaults are filled in"
    if request.pooling:
        max_tokens = _check_pooling(request, limits)
    elif len(prompt) >= limits.max_model_len:
        raise ContextLengthExceeded(len(prompt), None, limits.max_model_len)
    if len(prompt) + max_tokens > limits.max_model_len:
        raise ContextLengthExceeded(len(prompt), max_tokens, limits.max_model_len)
    needed = limits.blocks_needed(len(prompt) + max(max_tokens, 1) - 1)
    if needed > limits.num_blocks:
        raise RequestTooLarge(needed, limits.num_blocks)
    if request.timeout is not None and not 0 < request.timeout <= MAX_TIMEOUT_SECONDS:
        raise InvalidRequest(f"timeout must be a positive number of seconds, got {request.timeout}", param="timeout")


def _check_pooling(request: GenerateRequest, limits: RequestLimits) -> int:
    """Check a request for an embedding, which may fill the context; return its number of output tokens, 0."""
    if not limits.hidden_size:
        raise InvalidRequest("this model makes no embeddings", param="pooling")
    params, num_tokens = request.params, len(request.prompt_token_ids)
    if params.num_choices > 1 or params.structured is not None or params.prompt_logprobs is not None or request.resume:
        raise InvalidRequest(
            "an embedding cannot be combined with n, structured output, prompt_logprobs or resume", param="pooling"
        )
    if params.max_tokens != 1:
        raise InvalidRequest(f"an embedding needs max_tokens 1, got {params.max_tokens}", param="max_tokens")
    if num_tokens > limits.max_model_len:
        raise ContextLengthExceeded(num_tokens, 0, limits.max_model_len)
    return 0
