"""CompletionRequest and read_completion: parse a body of /v1/completions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.item_errors import item_in_errors
from chairlift.core.sampling_params import MAX_TOKENS, SamplingParams
from chairlift.core.validation import boolean, integer, invalid_param
from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.llm.text_service import Prompt
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.request_fields import AS_MANY_AS_FIT, COMPLETION, MAX_PROMPTS, MAX_TOP_LOGPROBS
from chairlift.server.openai.base_request import BaseRequest, common_fields
from chairlift.server.openai.structured_fields import read_structured_output

MAX_TOTAL_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(BaseRequest):
    """A request to /v1/completions; each prompt has `params.n` choices.

    Attributes:
        prompts: texts or token ids.
        fills_context: whether an output without max_tokens has as many tokens as fit.
    """

    prompts: tuple[Prompt, ...]
    fills_context: bool

    def resumed_choices(self, number: int) -> tuple[tuple[int, ...], ...]:
        """Return the delivered tokens of the choices of one prompt; `resume` has those of all prompts in order."""
        if len(self.prompts) == 1:
            return self.resume
        return self.resume[number * self.params.n : (number + 1) * self.params.n]


def read_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse a body of /v1/completions. Raises InvalidRequest."""
    fields, ignored = split_fields(body, COMPLETION)
    prompts = _prompts(fields["prompt"])
    more: dict[str, Any] = {name: fields.pop(name) for name in ("best_of", "echo") if fields.get(name) is not None}
    if (logprobs := fields.pop("logprobs", None)) is not None:
        more["logprobs"] = integer("logprobs", logprobs, 0, MAX_TOP_LOGPROBS)
        if more.get("echo") is True:
            more["prompt_logprobs"] = more["logprobs"]
    fills_context = boolean("fill_context", fields.get("fill_context", False))
    if fields.get("max_tokens") == AS_MANY_AS_FIT:
        fields["max_tokens"], fills_context = None, True
    common = common_fields(fields, ignored, read_structured_output(fields, LoweringBudget()), more)
    params: SamplingParams = common["params"]
    if params.best_of is not None and common["stream"]:
        raise invalid_param(
            "best_of", "cannot be combined with stream, because the best choice is known only at the end"
        )
    if len(prompts) * params.num_choices > MAX_TOTAL_CHOICES:
        raise invalid_param(
            "n",
            f"times the number of prompts must be at most {MAX_TOTAL_CHOICES}, got {len(prompts) * params.num_choices}",
        )
    if len(prompts) > 1 and len(common["resume"]) > (num_choices := len(prompts) * params.n):
        raise invalid_param(
            "resume", f"has tokens of {len(common['resume'])} choices, the request has {num_choices} of all prompts"
        )
    return CompletionRequest(**common, prompts=prompts, fills_context=fills_context)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """Return the prompts of the field `prompt`: one, or a list of them."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise invalid_param("prompt", "must be text, token ids, or a non-empty list of one of them")
    if all(type(token) is int for token in value):
        return (_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise invalid_param("prompt", f"has {len(value)} entries, the limit is {MAX_PROMPTS}")
    made: list[Prompt] = []
    for index, each in enumerate(value):
        with item_in_errors("prompt", index, len(value), ("prompt",)):
            if each == "":
                raise invalid_param("prompt", "must not contain an empty text")
            if type(each) is not type(value[0]) or not isinstance(each, str | list) or not each:
                raise invalid_param("prompt", "must be text, token ids, or a non-empty list of one of them")
            made.append(each if isinstance(each, str) else _ids(each))
    return tuple(made)


def _ids(tokens: list[Any]) -> tuple[int, ...]:
    for token in tokens:
        if type(token) is not int or not 0 <= token <= MAX_TOKENS:
            raise invalid_param("prompt", f"must contain only token ids, got {format_short(token)}")
    return tuple(tokens)
