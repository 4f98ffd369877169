"""Error tree: codes, messages with both numbers, and serialization across a process boundary."""

import re

import pytest

from chairlift.core import errors, router_errors
from chairlift.core.errors import (
    BodyTimeout,
    BodyTooLarge,
    ChairliftError,
    ConfigError,
    ContextLengthExceeded,
    DeadlineUnreachable,
    DetokenizeFailed,
    DuplicateRequestId,
    EngineDead,
    FingerprintMismatch,
    Forbidden,
    ForwardFailed,
    HeadersTooLarge,
    InvalidRequest,
    MalformedRequest,
    MethodNotAllowed,
    ModelError,
    ModelNotFound,
    NoAllowedToken,
    NonFiniteLogits,
    NotFound,
    OutOfBlocks,
    Overloaded,
    QueueFull,
    RateLimited,
    RequestFailed,
    RequestRejected,
    RequestTimeout,
    RequestTooLarge,
    SamplingFailed,
    StructuredOutputFailed,
    StructuredOutputTooComplex,
    TimeoutTooShort,
    TokenOutOfRange,
    Unauthorized,
    Unavailable,
    UnknownOption,
    UnsupportedArchitecture,
    UnsupportedMediaType,
    UnsupportedModel,
    error_from_wire,
)
from support_shares import for_each

KINDS = [
    kind
    for kind in (vars(errors) | vars(router_errors)).values()
    if isinstance(kind, type) and issubclass(kind, ChairliftError)
]

EXAMPLES = [
    ChairliftError("something"),
    InvalidRequest("top_p must be 1", param="top_p"),
    ContextLengthExceeded(5000, None, 4096),
    ContextLengthExceeded(4000, 200, 4096),
    RequestTooLarge(12, 8),
    TokenOutOfRange(999, 304),
    TokenOutOfRange(999, 304, "logit_bias"),
    DuplicateRequestId("a-1"),
    ConfigError("block_size must be at least 1, got 0", option="block_size"),
    UnknownOption("unknown option 'block_sizes'; did you mean 'block_size'?", option="block_sizes"),
    ModelError("no such folder", path="x"),
    UnsupportedArchitecture("no architecture is named X", architecture="X"),
    UnsupportedModel("x.gguf is a GGUF file", remedy="use the safetensors model"),
    QueueFull(7, 7),
    RequestTimeout(2.5),
    DeadlineUnreachable(3.25, 1.5),
    TimeoutTooShort(3.25, 1.5),
    OutOfBlocks(free=2, total=9, needed=3),
    RequestFailed("alone"),
    ForwardFailed("the model raised"),
    NonFiniteLogits("NaN"),
    SamplingFailed("the sampler raised"),
    NoAllowedToken("all tokens are banned"),
    StructuredOutputFailed("a fault"), StructuredOutputTooComplex("too many states"),
    DetokenizeFailed("no text"),
    EngineDead("killed", exit_code=-9),
    router_errors.DiscoveryFailed("etcd is down"),
    router_errors.ReplicaFailed("no replica completed it"),
    router_errors.ReplicaTimeout("none in time"),
    RequestRejected("no"),
    MalformedRequest("no JSON"),
    Unauthorized("a key is needed"),
    Forbidden("not from a page"),
    NotFound("no such route"),
    ModelNotFound("gpt", "demo"),
    FingerprintMismatch("other", "mine"),
    MethodNotAllowed("POST alone", allow="POST"),
    BodyTimeout("30 s"),
    BodyTooLarge("9 bytes, the limit is 8"),
    HeadersTooLarge("129 lines, the limit is 128"),
    UnsupportedMediaType("text/plain"),
    RateLimited("the limit is 3", retry_after=2.5),
    Overloaded("9 wait, the limit is 8", retry_after=1.5),
    Unavailable("starting", state="starting", retry_after=2.0),
]  # fmt: skip


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(error) for error in EXAMPLES} == set(KINDS)


def test_every_kind_has_a_code_of_its_own_that_can_be_a_label() -> None:
    codes = [kind.__dict__["code"] for kind in KINDS]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z][a-z_]*", code) for code in codes)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    texts = (errors.__doc__ or "") + (router_errors.__doc__ or "")
    drawn = re.findall(r"^ {4}([│ ├└─]*)(\w+)", texts, flags=re.MULTILINE)
    assert {name: len(branch) // 4 for branch, name in drawn} == {
        kind.__name__: sum(issubclass(base, ChairliftError) for base in kind.__mro__) - 1 for kind in KINDS
    }


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_an_error_that_crossed_a_border_is_the_same_error(error: ChairliftError) -> None:
    back = error_from_wire(error.code, error.message, error.details)
    assert type(back) is type(error)
    assert (str(back), back.message, back.details) == (str(error), error.message, error.details)
    assert (back.code, back.retryable) == (error.code, error.retryable)


def test_a_rebuilt_error_can_be_raised_and_caught_by_its_parents() -> None:
    with pytest.raises(InvalidRequest, match="outside the vocabulary, which has 304 tokens"):
        raise error_from_wire("token_out_of_range", str(TokenOutOfRange(999, 304)), {})


def test_an_unknown_code_becomes_the_base() -> None:
    error = error_from_wire("from_the_future", "text", {"n": 1})
    assert type(error) is ChairliftError and error.details == {"n": 1}


@pytest.mark.parametrize("name", ["message", "self", "code"])
def test_details_may_have_any_name(name: str) -> None:
    assert error_from_wire("queue_full", "text", {name: 3}).details == {name: 3}


@for_each(
    ("error", "sentence"),
    [
        (ContextLengthExceeded(5000, None, 4096), "prompt has 5000 tokens, the limit is 4096"),
        (
            ContextLengthExceeded(4096, 1, 4096),
            "prompt has 4096 tokens, the limit is 4096 including at least one output token",
        ),
        (ContextLengthExceeded(4000, 200, 4096), "4000 tokens and max_tokens is 200, the limit of their sum is 4096"),
        (ContextLengthExceeded(4000, 200, 4096), "this model's maximum context length is 4096 tokens"),
        (ContextLengthExceeded(5000, None, 4096), "this model's maximum context length is 4096 tokens"),
        (RequestTooLarge(12, 8), "needs 12 blocks of the KV cache, which has 8"),
        (
            TokenOutOfRange(-1, 304, "stop_token_ids"),
            "stop_token_ids: token id -1 is outside the vocabulary, which has 304",
        ),
        (DuplicateRequestId("a'b"), '"a\'b" is already in use'),
        (QueueFull(7, 5), "7 requests wait, the limit is 5"),
        (RequestTimeout(0.5), "timeout of 0.5 s"),
        (DeadlineUnreachable(3.25, -1.0), "needs at least 3.25 s without waiting, 0 s of its timeout are left"),
        (TimeoutTooShort(3.25, 1.5), "timeout is 1.5 s, but the request needs at least 3.25 s"),
        (OutOfBlocks(free=2, total=9, needed=3), "3 blocks are needed, 2 of 9 are free"),
    ],
)
def test_a_sentence_carries_both_numbers(error: ChairliftError, sentence: str) -> None:
    assert sentence in str(error)


def test_a_retry_helps_where_the_caller_did_nothing_wrong() -> None:
    helps = {kind.code for kind in KINDS if kind.retryable}
    assert helps == {
        "queue_full", "timeout", "deadline_unreachable", "out_of_blocks", "engine_dead", "rate_limited", "overloaded",
        "discovery_failed", "replica_failed", "replica_timeout",
        "unavailable",
    }  # fmt: skip


@pytest.mark.parametrize("error", [each for each in EXAMPLES if isinstance(each, InvalidRequest)], ids=repr)
def test_a_bad_request_names_its_field(error: InvalidRequest) -> None:
    assert error.details["param"]
