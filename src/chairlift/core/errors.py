"""Error tree: each class has a `code` (metric label, API code, wire name) and says whether a retry helps.

    ChairliftError
    ├── InvalidRequest              the caller's fault, raised before anything is queued
    │   ├── ContextLengthExceeded   prompt (and max_tokens) against the model's context
    │   ├── RequestTooLarge         more blocks than the whole pool has
    │   ├── TokenOutOfRange         a token id that the vocabulary does not have
    │   ├── TimeoutTooShort         a timeout that even an idle engine cannot meet
    │   └── DuplicateRequestId      an id of a request that is still open
    ├── ConfigError                 an invalid option, rejected at start
    │   └── UnknownOption           no option has this name; also a TypeError
    ├── ModelError                  a model folder is missing, truncated or unsupported
    │   ├── UnsupportedModel        a format of weights that Chairlift does not read
    │   └── UnsupportedArchitecture
    ├── QueueFull                   the waiting queue is at its limit; retry later
    ├── RequestTimeout              the request exceeded its own timeout
    ├── DeadlineUnreachable         too little of the timeout is left after the wait, so it was not started
    ├── OutOfBlocks                 the block pool is empty (inside the engine)
    ├── RequestFailed               an error of one request inside a step
    │   ├── ForwardFailed           the model raises because of this request alone
    │   ├── NonFiniteLogits         NaN or infinite logits
    │   ├── SamplingFailed          no token could be sampled
    │   │   └── NoAllowedToken      the request's own parameters exclude every token
    │   ├── StructuredOutputFailed  the grammar cannot be followed any further
    │   │   └── StructuredOutputTooComplex  following it exceeds the limits of a step
    │   └── DetokenizeFailed        the tokens could not be turned into text
    ├── EngineDead                  the engine process failed, hangs, or was closed
    └── RequestRejected             rejected before the request is submitted to the engine
        ├── MalformedRequest        not HTTP, or not JSON
        ├── Unauthorized            no API key, or an unknown one
        ├── Forbidden               the API key does not permit this
        ├── NotFound                no such route
        │   └── ModelNotFound       no such model on this server
        ├── FingerprintMismatch     the request resumes from tokens of other weights
        ├── MethodNotAllowed        the route has other methods
        ├── BodyTimeout             the body took too long to arrive
        ├── BodyTooLarge
        ├── HeadersTooLarge
        ├── UnsupportedMediaType    the Content-Type is not JSON
        ├── RateLimited             a tenant has used its share of the minute
        ├── Overloaded              the queue is longer than the client can wait, or than the limit
        └── Unavailable             starting, draining, or without an engine

The errors of routers are in router_errors.py, those of clusters in cluster_errors.py. A message that names a bound
carries both numbers: the received value and the limit.
"""

from typing import ClassVar, Self

Detail = str | int | float | None


class ChairliftError(Exception):
    """Base of every error that Chairlift raises on purpose.

    `details` are the numbers and names of the message, for programs; they cross process boundaries with it.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, /, **details: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @classmethod
    def from_wire(cls, message: str, details: dict[str, Detail]) -> Self:
        """Rebuild the error from its serialized message and details, without calling the constructor."""
        error = cls.__new__(cls)
        ChairliftError.__init__(error, message, **details)
        return error


class InvalidRequest(ChairliftError):
    """The request is invalid and never reaches the engine; `details["param"]` names the field."""

    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or the prompt and max_tokens together, exceed the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self, prompt_tokens: int, max_tokens: int | None, limit: int, *, or_more: bool = False
    ) -> None:  # fmt: skip
        if max_tokens == 0:
            message = f"the text has {prompt_tokens} tokens, the limit is {limit}"
        elif max_tokens is None or prompt_tokens >= limit:
            count = f"{prompt_tokens} tokens{' or more' if or_more else ''}"
            message = f"prompt has {count}, the limit is {limit} including at least one output token"
        else:
            message = f"prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}"
            message += f", the limit of their sum is {limit}"
        message += f" (this model's maximum context length is {limit} tokens)"  # clients search for these words
        super().__init__(message, param="prompt", prompt_tokens=prompt_tokens, max_tokens=max_tokens, limit=limit)


class RequestTooLarge(InvalidRequest):
    """The request needs more KV cache blocks than the whole pool has."""

    code = "request_too_large"

    def __init__(self, needed: int, total: int) -> None:
        message = f"the request needs {needed} blocks of the KV cache, which has {total}"
        super().__init__(message, param="prompt", needed=needed, total=total)


class TokenOutOfRange(InvalidRequest):
    """A token id is outside the vocabulary."""

    code = "token_out_of_range"

    def __init__(self, token_id: int, vocab_size: int, param: str = "prompt") -> None:
        message = f"{param}: token id {token_id} is outside the vocabulary, which has {vocab_size} tokens"
        super().__init__(message, param=param, token_id=token_id, vocab_size=vocab_size)


class TimeoutTooShort(InvalidRequest):
    """The request takes longer than its own timeout even on an idle engine, so a retry would fail, too."""

    code = "timeout_too_short"

    def __init__(self, needed: float, timeout: float) -> None:
        message = (
            f"timeout is {timeout:g} s, but the request needs at least {needed:.3g} s even without waiting; raise the "
            "timeout or lower max_tokens"
        )
        super().__init__(message, param="timeout", needed=needed, timeout=timeout)


class DuplicateRequestId(InvalidRequest):
    """The request id belongs to a request that is still open."""

    code = "duplicate_request_id"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request id {request_id!r} is already in use", param="request_id", request_id=request_id)


class ConfigError(ChairliftError):
    """An option is invalid; nothing is started."""

    code = "config_error"


class UnknownOption(ConfigError, TypeError):
    """No option has this name; the message names the nearest one."""

    code = "unknown_option"


class ModelError(ChairliftError):
    """A model folder cannot be loaded; the message names the file."""

    code = "model_error"


class UnsupportedModel(ModelError):
    """Chairlift does not read this kind of model; `details["remedy"]` says what to use instead."""

    code = "unsupported_model"


class UnsupportedArchitecture(ModelError):
    """Chairlift does not support this model architecture; `details["remedy"]` says what to use instead."""

    code = "unsupported_architecture"


class QueueFull(ChairliftError):
    """The waiting queue is at its limit."""

    code = "queue_full"
    retryable = True

    def __init__(self, waiting: int, limit: int) -> None:
        message = f"the waiting queue is full: {waiting} requests wait, the limit is {limit}"
        super().__init__(message, waiting=waiting, limit=limit)


class RequestTimeout(ChairliftError):
    """The request did not finish within its own timeout."""

    code = "timeout"
    retryable = True

    def __init__(self, timeout: float) -> None:
        super().__init__(f"the request did not finish within its timeout of {timeout:g} s", timeout=timeout)


class DeadlineUnreachable(ChairliftError):
    """The request has waited too long to finish within its timeout, so it is not started."""

    code = "deadline_unreachable"
    retryable = True

    def __init__(self, needed: float, left: float) -> None:
        message = (
            f"the request needs at least {needed:.3g} s without waiting, {max(0.0, left):.3g} s of its timeout are left"
        )
        super().__init__(message, needed=needed, left=left)


class OutOfBlocks(ChairliftError):
    """The block pool has fewer free blocks than needed; nothing was allocated."""

    code = "out_of_blocks"
    retryable = True

    def __init__(self, free: int, total: int, needed: int = 1) -> None:
        message = f"{needed} blocks are needed, {free} of {total} are free"
        super().__init__(message, free=free, total=total, needed=needed)


class RequestFailed(ChairliftError):
    """A step failed because of this request alone."""

    code = "request_failed"


class ForwardFailed(RequestFailed):
    """The model's forward pass fails whenever it includes this request."""

    code = "forward_failed"


class NonFiniteLogits(RequestFailed):
    """The model's logits for this request are NaN or infinite."""

    code = "non_finite_logits"


class SamplingFailed(RequestFailed):
    """No token can be sampled: every token is banned, or the sampler raised."""

    code = "sampling_failed"


class NoAllowedToken(SamplingFailed):
    """The request's own parameters exclude every token, alone or together with its grammar."""

    code = "no_allowed_token"


class StructuredOutputFailed(RequestFailed):
    """The grammar of the output cannot be followed any further."""

    code = "structured_output_failed"


class StructuredOutputTooComplex(StructuredOutputFailed):
    """Following the grammar of the request exceeds the limits of a step, so the request is at fault."""

    code = "structured_output_too_complex"

    def __init__(self, reason: str) -> None:
        message = f"the structured output is too complex to follow ({reason}); use fewer alternatives or properties"
        super().__init__(message, reason=reason, param="structured")


class DetokenizeFailed(RequestFailed):
    """The tokens of this request could not be turned into text."""

    code = "detokenize_failed"


class EngineDead(ChairliftError):
    """The engine failed, hung or was closed while the request was open."""

    code = "engine_dead"
    retryable = True


class RequestRejected(ChairliftError):
    """The API server rejects the request; the engine never receives it."""

    code = "refused"


class MalformedRequest(RequestRejected):
    """The input is not an HTTP request, or its body is not a JSON object."""

    code = "malformed_request"


class Unauthorized(RequestRejected):
    """The API key is missing or unknown. Only the log says which."""

    code = "invalid_api_key"


class Forbidden(RequestRejected):
    """The API key does not permit this request, or the server does not serve this `Host` or `Origin`."""

    code = "forbidden"


class NotFound(RequestRejected):
    """The route does not exist, or no object has this name."""

    code = "not_found"


class ModelNotFound(NotFound):
    """This server does not serve the named model."""

    code = "model_not_found"

    def __init__(self, model: str, served: str) -> None:
        super().__init__(f"the model {model[:200]!r} is not served here; served are {served}", param="model")


class FingerprintMismatch(RequestRejected):
    """The tokens from which the request resumes are of other weights than this server's, or of another tokenizer."""

    code = "fingerprint_mismatch"

    def __init__(self, expected: str, fingerprint: str) -> None:
        message = (
            f"resume_fingerprint is {expected!r}, this server's fingerprint is {fingerprint!r}; resume on a server "
            "with the same fingerprint, or send the request without resume"
        )
        super().__init__(message, param="resume_fingerprint", fingerprint=fingerprint)


class MethodNotAllowed(RequestRejected):
    """The route has other methods; `details["allow"]` and the `allow` header name them."""

    code = "method_not_allowed"


class BodyTimeout(RequestRejected):
    """The body did not arrive within its time limit."""

    code = "body_timeout"


class BodyTooLarge(RequestRejected):
    """The body has more bytes than the limit."""

    code = "body_too_large"


class HeadersTooLarge(RequestRejected):
    """The request's header block has more bytes or more lines than the limit."""

    code = "headers_too_large"


class UnsupportedMediaType(RequestRejected):
    """The media type of the body is not JSON, or the body is compressed."""

    code = "unsupported_media_type"


class RateLimited(RequestRejected):
    """The tenant exceeded its rate limit.

    `details["retry_after"]`: seconds until it may send again.
    """

    code = "rate_limited"
    retryable = True


class Overloaded(RequestRejected):
    """The admission queue is full, or the expected wait in it is too long.

    `details["retry_after"]`: seconds until the queue is expected to be short enough.
    """

    code = "overloaded"
    retryable = True


class Unavailable(RequestRejected):
    """The server accepts no requests now; `details["state"]` says why.

    `details["retry_after"]`: seconds to wait before a retry.
    """

    code = "unavailable"
    retryable = True


def _tree(root: type[ChairliftError]) -> dict[str, type[ChairliftError]]:
    return {root.code: root} | {code: kind for sub in root.__subclasses__() for code, kind in _tree(sub).items()}


def is_error_code(code: str) -> bool:
    """Return whether an error of Chairlift has this code."""
    return code in _tree(ChairliftError)


def error_from_wire(code: str, message: str, details: dict[str, Detail]) -> ChairliftError:
    """Return a serialized error as its own class; an unknown code becomes the base class."""
    return _tree(ChairliftError).get(code, ChairliftError).from_wire(message, details)
