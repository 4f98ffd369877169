"""Names of options: hints for those that do not exist, and messages in the names that the user gave.

A manager has transformers' names, the engine its own: `page_size` becomes `block_size`. An error about `block_size`
is raised again about `page_size` where that was given.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from chairlift.core.errors import ChairliftError, ConfigError, InvalidRequest
from chairlift.core.foreign_options import OptionEffect
from chairlift.llm.transformers_compat.option_table import (
    BATCHING,
    ENGINE_OPTIONS,
    GENERATION,
    OTHER_SAMPLING,
    OptionPart,
)

REQUEST_ARGUMENTS = (
    "input_ids", "request_id", "max_new_tokens", "streaming", "record_timestamps", "eos_token_id", "timeout",
    "priority",
)  # fmt: skip
"""Arguments of add_request besides the sampling parameters."""

OTHER_NAMES: Mapping[str, str] = {
    "max_tokens": "max_new_tokens", "max_output_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens",
    "stop": "stop_strings", "stop_sequences": "stop_strings", "stream": "streaming", "prompt": "input_ids",
    "prompt_token_ids": "input_ids", "logprobs": "return_logprobs", "top_logprobs": "return_logprobs",
    "n": "num_return_sequences", "best_of": "num_return_sequences", "eos_token_ids": "eos_token_id",
    "max_num_seqs": "max_requests_per_batch", "max_num_batched_tokens": "max_batch_tokens",
    "gpu_memory_utilization": "max_memory_percent", "random_seed": "seed",
}  # fmt: skip
"""Names that other programs have for an option -> its name here."""

REQUEST_FIELDS: Mapping[str, str] = {
    **{name: spec.setting or name for name, spec in GENERATION.items() if spec.part is OptionPart.SAMPLING},
    **{name: name for name in (*OTHER_SAMPLING, "do_sample")},
}
"""Keyword argument of add_request -> field of SamplingParams."""

ENGINE_LIMITS: Mapping[str, str] = {"max_tokens": "max_new_tokens"}
"""The engine's name of a limit of a request -> its name here."""

MANAGER_OPTIONS = (*BATCHING, *GENERATION, *ENGINE_OPTIONS, *OTHER_SAMPLING)
"""Keyword arguments of a manager."""


def manager_hint(name: str) -> str:
    """Return what to use instead of an option that a manager does not have; empty when nothing is near."""
    other = OTHER_NAMES.get(name, name)
    if reason := _reason_of_refusal(other):
        return f": {reason}"
    if other in REQUEST_ARGUMENTS and other not in MANAGER_OPTIONS:
        return f"; {other} is an argument of add_request()"
    return f"; did you mean {other!r}?" if other in MANAGER_OPTIONS else _nearest(name, MANAGER_OPTIONS)


def request_hint(name: str) -> str:
    """Return why a request does not have a parameter, or what to use instead; empty when nothing is near."""
    other, own = OTHER_NAMES.get(name, name), (*REQUEST_FIELDS, *REQUEST_ARGUMENTS)
    if reason := _reason_of_refusal(other):
        return f": {reason}"
    if other in own:
        return f"; did you mean {other!r}?"
    if other not in MANAGER_OPTIONS:
        return _nearest(name, own)
    spec = GENERATION.get(other) or BATCHING.get(other)
    if spec is not None and spec.reason:
        return f": {spec.reason}"
    return ": it is one of the manager" if other == name else f"; use {other!r} of the manager"


def _reason_of_refusal(name: str) -> str:
    spec = GENERATION.get(name)
    return spec.reason if spec is not None and spec.effect is OptionEffect.REFUSED else ""


def _nearest(name: str, known: tuple[str, ...]) -> str:
    """Return a hint with the nearest name, empty when none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def with_given_names(text: str, given: Mapping[str, str]) -> str:
    """Return a message with the user's names instead of the engine's; text in quotation marks stays as it is."""
    if not given:
        return text
    pattern = rf"(?<!['\"`\w])({'|'.join(map(re.escape, given))})(?!\w)"
    return re.sub(pattern, lambda match: given[match[0]], text)


@contextmanager
def naming_given_options(given: Mapping[str, str]) -> Iterator[None]:
    """Raise errors about options inside the context again, in the user's names.

    Args:
        given: name in the engine -> name that the user gave.
    """
    try:
        yield
    except (ConfigError, InvalidRequest) as error:
        message = with_given_names(error.message, given)
        details = {
            key: given.get(value, value) if key in ("option", "param") and isinstance(value, str) else value
            for key, value in error.details.items()
        }
        if message == error.message and details == error.details:
            raise
        renamed: ChairliftError = type(error).from_wire(message, details)
        raise renamed from error
