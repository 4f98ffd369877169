"""Hooks for schemathesis: the reasons for which the server may reject a body that the schema allows.

SCHEMATHESIS_HOOKS names this module. A rejection without a listed reason fails the run, as does a stream without end.
"""

import json
import re
from typing import Any

import schemathesis

from support_server import ADMIN_KEY

N = r"\d[\d.e-]*"
STRUCTURES = ("regex", "grammar", "choice", "response_format")

# Field (a pattern) -> what is said of it behind its name (a pattern, whole), where a schema cannot say it.
EXPLAINED: tuple[tuple[str, str], ...] = (
    # what the model is
    (r"prompt", rf"has {N} tokens, (at least 1 is needed|the limit is {N} with at least one to generate)"),
    (r"prompt", rf"has {N} tokens and max_tokens is {N}, together the limit is {N}"),
    (r"tokens", rf"must hold token ids from 0 to {N}"),
    (r"prompt|resume|logit_bias|(bad_words|stop_token|allowed_token)_ids",
     rf": token id {N} is outside the vocabulary of {N}"),
    (r"logit_bias", rf"must be between 0 and {N}, got {N}"),
    (r"logits_processors", r"there is no logits processor '.*'; there is none"),
    (r"messages(\[\d+\].*)?", r".*(the chat template|private use).*"),
    # what another field says
    (r"tool_choice", r"needs tools to choose from|names '.*', which is not among the tools"),
    (r"tool_choice", r"cannot force a call in a request that also constrains the output"),
    (r"tools", r"cannot be forced: the grammar of all tools .*"),
    (r"top_logprobs", r"needs logprobs to be true"),
    (r"response_format|regex|grammar|choice", r"cannot go with (regex|grammar|choice|response_format| and )+"),
    (r"min_tokens", rf"is {N}, more than max_tokens {N}"),
    (r"max_tokens", rf"must be between 1 and {N}, got 0 without echo or prompt_logprobs"),
    (r"best_of", rf"is {N}, less than n {N}|cannot go with stream: the best choice is known only at the end"),
    (r"n", rf"times the prompts may be {N}, got {N}"),
    (r"resume", rf"goes with one prompt, got {N}|: token {N} does not follow the structure"),
    (r"resume", r"must be a list of lists of token ids, one for each choice"),
    (r"prompt", r"or messages is needed, one of them"),
    (r"messages\[\d+\]\.tool_call_id", r"must be the id of a call in an assistant's message before it"),
    (r"tools\[\d+\]\.function\.name", r"appears twice: [\w:-]+"),
    # what is written in another language
    (r"messages\[\d+\]\.tool_calls\[\d+\]\.function\.arguments", r"must be a string with a JSON object in it"),
    (r"regex|grammar", rf": .+|must not nest brackets deeper than {N} levels"),
    (r"response_format", r"\.json_schema\.schema.+"),
    (r"tools\[\d+\]\.function\.parameters", r".+"),
    # JSON Schema counts 1.0 as an integer, and so no server of OpenAI's API does
    (r"\w*_tokens|\w*_ids|n|best_of|seed|priority|top_k|\w*logprobs|no_repeat_ngram_size",
     r"must be (an integer|a list), got float"),
    (r"prompt", r"must be text, token ids, or a list of one of them, none of them empty"),
    (r"prompt", r"must hold token ids, got .*\.0"),
)  # fmt: skip

OUT_OF_TIME = {
    (408, "timeout", rf"the request did not finish within its timeout of {N} s"),
    (429, "deadline_unreachable", rf"the request needs at least {N} s by itself, {N} s of its timeout are left"),
}
"""What a request gets whose own time is too short."""

BANS = ("logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "stop_token_ids", *STRUCTURES)
"""Fields that together may leave no token."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Take out of every other body what goes not with the rest of it; almost none would be worked for otherwise."""
    body = case.body
    if not _is_positive(case) or not isinstance(body, dict) or len(body) % 2:
        return
    structures = [name for name in STRUCTURES if body.get(name) is not None]
    for name in structures[1:]:
        del body[name]
    if not body.get("tools"):
        body.pop("tool_choice", None)
    if body.get("logprobs") is not True and "messages" in body:
        body.pop("top_logprobs", None)


@schemathesis.check
def is_accepted_or_explained(context: Any, response: Any, case: Any) -> None:
    """What the schema allows is answered, or refused for a reason above."""
    if not _is_positive(case):
        return
    status = response.status_code
    if 200 <= status < 300 or (status == 401 and not _has_key(response.request)):
        return
    if status == 404 and case.operation.path == "/admin/requests/{id}":
        return
    _explain(status, response.json()["error"], case)


@schemathesis.check
def a_stream_has_an_end(context: Any, response: Any, case: Any) -> None:
    """A streamed answer ends with [DONE], or with an error that a reason explains."""
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    last = response.text.rstrip("\n").rpartition("\n\n")[2]
    if last == "data: [DONE]":
        return
    event, _, data = last.partition("\n")
    assert event == "event: error" and data.startswith("data: "), f"the stream ends with {last!r}"
    error = json.loads(data.removeprefix("data: "))["error"]
    _explain({"no_allowed_token": 400, "timeout": 408}.get(error["code"], 500), error, case)


def _has_key(request: Any) -> bool:
    return request.headers.get("authorization") == f"Bearer {ADMIN_KEY}"


def _is_positive(case: Any) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive


def _explain(status: int, error: dict[str, Any], case: Any) -> None:
    """Raise AssertionError where no reason explains a refusal."""
    param, said = error["param"] or "", error["message"]
    if any((status, error["code"]) == known[:2] and re.fullmatch(known[2], said) for known in OUT_OF_TIME):
        return
    if status == 400 and error["code"] == "no_allowed_token" and any(case.body.get(name) for name in BANS):
        return
    if status == 400 and any(
        re.fullmatch(field, param) and re.fullmatch(rf"(?:{re.escape(param)} ?)?(?:{rest})", said, re.DOTALL)
        for field, rest in EXPLAINED
    ):
        return
    raise AssertionError(f"no reason explains {status} {error['code']}: {param}: {said}")
