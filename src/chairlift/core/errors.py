"""The one tree of errors. Each kind has a `code` (metric label, API code, wire name) and says whether a retry helps.

    ChairliftError
    ├── InvalidRequest              the caller's fault, raised before anything is queued
    │   ├── ContextLengthExceeded   prompt (and max_tokens) against the model's context
    │   ├── RequestTooLarge         more blocks than the whole pool has
    │   ├── TokenOutOfRange         a token id that the vocabulary does not have
    │   └── DuplicateRequestId      an id that is still open
    ├── ConfigError                 an option, refused at start
    ├── ModelError                  a model folder: missing, truncated, unsupported
    │   └── UnsupportedArchitecture
    ├── QueueFull                   come back later
    ├── RequestTimeout              the request's own time was up
    ├── DeadlineUnreachable         its time is too short for what it asks, so it was not begun
    ├── OutOfBlocks                 the pool has none left (inside the engine)
    ├── RequestFailed               one request's own fault inside a step
    │   ├── ForwardFailed           the model raised, and this request alone makes it raise
    │   ├── NonFiniteLogits         NaN or infinite logits
    │   ├── SamplingFailed          no token could be drawn
    │   │   └── NoAllowedToken      the request's own parameters exclude every token
    │   ├── StructuredOutputFailed  its grammar became too costly to follow
    │   └── DetokenizeFailed        its text could not be made
    ├── EngineDead                  the engine process died, hangs, or was closed
    └── RequestRejected             rejected before the request is submitted to the engine
        ├── MalformedRequest        no HTTP, or no JSON
        ├── Unauthorized            no key, or none that is known
        ├── Forbidden               a key that may not do this
        ├── NotFound                no such route
        │   └── ModelNotFound       no such model here
        ├── MethodNotAllowed        the route has other methods
        ├── BodyTimeout             the body took too long to come
        ├── BodyTooLarge
        ├── HeadersTooLarge
        ├── UnsupportedMediaType    a body that is no JSON by its own word
        ├── RateLimited             a tenant had its share of the minute
        ├── Overloaded              the line is longer than the caller can wait, or than the limit
        └── Unavailable             starting, draining, or without an engine

A sentence that names a bound carries both numbers: the one that came and the one that holds.
"""

from typing import ClassVar, Self

Detail = str | int | float | None


class ChairliftError(Exception):
    """Base of everything that Chairlift raises on purpose.

    `details` are the numbers and names in the sentence, for programs; they cross process borders with it.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, /, **details: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @classmethod
    def from_wire(cls, message: str, details: dict[str, Detail]) -> Self:
        """Make the error again from what crossed a border, without its constructor's own sentence."""
        error = cls.__new__(cls)
        ChairliftError.__init__(error, message, **details)
        return error


class InvalidRequest(ChairliftError):
    """A request that no engine should see; `details["param"]` names the field."""

    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt and max_tokens together, are longer than the context."""

    code = "context_length_exceeded"

    def __init__(
        self, prompt_tokens: int, max_tokens: int | None, limit: int, *, or_more: bool = False
    ) -> None:  # fmt: skip
        if max_tokens is None or prompt_tokens >= limit:
            count = f"{prompt_tokens} tokens{' or more' if or_more else ''}"
            said = f"prompt has {count}, the limit is {limit} with at least one to generate"
        else:
            said = f"prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, together the limit is {limit}"
        super().__init__(said, param="prompt", prompt_tokens=prompt_tokens, max_tokens=max_tokens, limit=limit)


class RequestTooLarge(InvalidRequest):
    """The request would need more blocks than the whole pool has."""

    code = "request_too_large"

    def __init__(self, needed: int, total: int) -> None:
        said = f"request needs {needed} blocks of KV cache, the whole pool has {total}"
        super().__init__(said, param="prompt", needed=needed, total=total)


class TokenOutOfRange(InvalidRequest):
    """A token id outside the vocabulary."""

    code = "token_out_of_range"

    def __init__(self, token_id: int, vocab_size: int, param: str = "prompt") -> None:
        said = f"{param}: token id {token_id} is outside the vocabulary of {vocab_size}"
        super().__init__(said, param=param, token_id=token_id, vocab_size=vocab_size)


class DuplicateRequestId(InvalidRequest):
    """The id belongs to a request that is still open."""

    code = "duplicate_request_id"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request id {request_id!r} is already in use", param="request_id", request_id=request_id)


class ConfigError(ChairliftError):
    """An option that cannot be; refused at start."""

    code = "config_error"


class ModelError(ChairliftError):
    """A model folder that cannot be loaded; the sentence names the file."""

    code = "model_error"


class UnsupportedArchitecture(ModelError):
    """No family here knows this architecture."""

    code = "unsupported_architecture"


class QueueFull(ChairliftError):
    """The waiting line is at its limit."""

    code = "queue_full"
    retryable = True

    def __init__(self, waiting: int, limit: int) -> None:
        said = f"the queue is full: {waiting} requests wait, the limit is {limit}"
        super().__init__(said, waiting=waiting, limit=limit)


class RequestTimeout(ChairliftError):
    """The request did not end within its own timeout."""

    code = "timeout"
    retryable = True

    def __init__(self, timeout: float) -> None:
        super().__init__(f"the request did not finish within its timeout of {timeout:g} s", timeout=timeout)


class DeadlineUnreachable(ChairliftError):
    """The request cannot end within its timeout any more, so it is not begun."""

    code = "deadline_unreachable"
    retryable = True

    def __init__(self, needed: float, left: float) -> None:
        said = f"the request needs at least {needed:.3g} s by itself, {max(0.0, left):.3g} s of its timeout are left"
        super().__init__(said, needed=needed, left=left)


class OutOfBlocks(ChairliftError):
    """The pool cannot give what was asked; nothing has changed."""

    code = "out_of_blocks"
    retryable = True

    def __init__(self, free: int, total: int, needed: int = 1) -> None:
        said = f"{needed} blocks needed, {free} of {total} are free"
        super().__init__(said, free=free, total=total, needed=needed)


class RequestFailed(ChairliftError):
    """A fault inside a step that belongs to one request alone."""

    code = "request_failed"


class ForwardFailed(RequestFailed):
    """The forward pass raises whenever this request is in it."""

    code = "forward_failed"


class NonFiniteLogits(RequestFailed):
    """The model's logits for this request are NaN or infinite."""

    code = "non_finite_logits"


class SamplingFailed(RequestFailed):
    """No token can be drawn: everything is banned, or the sampler raised."""

    code = "sampling_failed"


class NoAllowedToken(SamplingFailed):
    """The request's own parameters exclude every token, alone or together with its structure."""

    code = "no_allowed_token"


class StructuredOutputFailed(RequestFailed):
    """The structure of the output cannot be followed any further within the limits of a step."""

    code = "structured_output_failed"


class DetokenizeFailed(RequestFailed):
    """The text of this request could not be made from its tokens."""

    code = "detokenize_failed"


class EngineDead(ChairliftError):
    """The engine process died, hangs or was closed while the request was open."""

    code = "engine_dead"
    retryable = True


class RequestRejected(ChairliftError):
    """A door's own refusal; the engine hears nothing of it."""

    code = "refused"


class MalformedRequest(RequestRejected):
    """What came is no HTTP request, or its body is no JSON object."""

    code = "malformed_request"


class Unauthorized(RequestRejected):
    """No key came, or one that nobody knows. Why exactly stays in the log."""

    code = "invalid_api_key"


class Forbidden(RequestRejected):
    """The key is good, and not for this."""

    code = "forbidden"


class NotFound(RequestRejected):
    """There is no such route, or nothing of this name."""

    code = "not_found"


class ModelNotFound(NotFound):
    """The model that was named is not served here."""

    code = "model_not_found"

    def __init__(self, model: str, served: str) -> None:
        super().__init__(f"the model {model[:200]!r} is not served here; there is {served}", param="model")


class MethodNotAllowed(RequestRejected):
    """The route exists for other methods; `details["allow"]` names them."""

    code = "method_not_allowed"


class BodyTimeout(RequestRejected):
    """The body did not come within its time."""

    code = "body_timeout"


class BodyTooLarge(RequestRejected):
    """The body has more bytes than the limit."""

    code = "body_too_large"


class HeadersTooLarge(RequestRejected):
    """The head of the request has more bytes, or more lines, than the limit."""

    code = "headers_too_large"


class UnsupportedMediaType(RequestRejected):
    """A body of another type than JSON, or a compressed one."""

    code = "unsupported_media_type"


class RateLimited(RequestRejected):
    """A tenant asked for more than its share; `details["retry_after"]` are the seconds until it has some again."""

    code = "rate_limited"
    retryable = True


class Overloaded(RequestRejected):
    """The line is too long; `details["retry_after"]` are the seconds until it is expected to be shorter."""

    code = "overloaded"
    retryable = True


class Unavailable(RequestRejected):
    """Nobody is served now: `details["state"]` says why, `details["retry_after"]` when to come again."""

    code = "unavailable"
    retryable = True


def _tree(root: type[ChairliftError]) -> dict[str, type[ChairliftError]]:
    kinds = {root.code: root}
    for kind in root.__subclasses__():
        kinds |= _tree(kind)
    return kinds


def error_from_wire(code: str, message: str, details: dict[str, Detail]) -> ChairliftError:
    """Turn an error that crossed a process border back into its kind (an unknown code becomes the base)."""
    return _tree(ChairliftError).get(code, ChairliftError).from_wire(message, details)
