"""GenerationFields, read_generation_fields: the fields of a generation request's body that concern attempts."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from chairlift.core.numeric_limits import MAX_INT32

MAX_CHOICES = 128
"""Choices of a request, of all its prompts; a body with more is invalid, so its request is not resumed."""

SEED_BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFields:
    """The fields of a generation request's body that concern attempts.

    Attributes:
        is_streamed: whether the response is a stream of events.
        is_resumable: whether a Chairlift replica may be sent `seed`, `resume` and `return_token_ids`.
        num_choices: choices of all prompts.
        resume: for each choice the token ids that the client has itself sent as delivered before.
        seed: seed that the router assigns, because the body has none; None if it has one.
        returns_token_ids: whether the client asked for token ids.
        includes_usage: whether the stream's last event has token counts.
        alias: name of the model that the response has, where the request names an alias; "" for that of the replica.
    """

    is_streamed: bool = False
    is_resumable: bool = False
    num_choices: int = 1
    resume: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    returns_token_ids: bool = False
    includes_usage: bool = False
    alias: str = ""


def read_generation_fields(body: Mapping[str, Any], random: Random, alias: str = "") -> GenerationFields:
    """Return the fields of a body that is a JSON object; `random` gives the seed that the router assigns.

    A body that no replica can accept is not resumable: it goes to a replica unchanged, which answers with an error.
    """
    is_streamed = body.get("stream") is True
    options = body.get("stream_options")
    n, resume = body.get("n"), body.get("resume")
    num_prompts = _num_prompts(body.get("prompt"))
    # type() and not isinstance(): true is an int of Python, but not a number of choices.
    num_choices = (1 if n is None else n) * num_prompts if type(n) in (int, type(None)) else 0
    is_valid = 1 <= num_choices <= MAX_CHOICES and (resume is None or _are_token_lists(resume, num_choices))
    if not is_valid:
        return GenerationFields(is_streamed=is_streamed, alias=alias)
    return GenerationFields(
        is_streamed=is_streamed,
        is_resumable=True,
        num_choices=num_choices,
        resume=tuple(map(tuple, resume or ())),
        seed=random.getrandbits(SEED_BITS) if body.get("seed") is None else None,
        returns_token_ids=body.get("return_token_ids") is True,
        includes_usage=is_streamed and isinstance(options, dict) and options.get("include_usage") is True,
        alias=alias,
    )


def _num_prompts(prompt: Any) -> int:
    """Return the number of prompts of a completion; 1 for a chat."""
    if not isinstance(prompt, list) or not prompt or type(prompt[0]) is int:
        return 1
    return len(prompt)


def _are_token_lists(resume: Any, num_choices: int) -> bool:
    return (
        isinstance(resume, list)
        and len(resume) <= num_choices
        and all(isinstance(tokens, list) for tokens in resume)
        and all(type(token) is int and 0 <= token <= MAX_INT32 for tokens in resume for token in tokens)
    )
