"""Hooks for schemathesis: allowed reasons to reject a body that the schema allows.

SCHEMATHESIS_HOOKS names this module. A rejection without a listed reason fails the run, as does a stream without end.
"""

import json
import re
from typing import Any

import schemathesis

from support_server import ADMIN_KEY

NUMBER = r"\d[\d.e-]*"
CONTEXT = rf"\(this model's maximum context length is {NUMBER} tokens\)"
STRUCTURES = (
    "regex", "grammar", "choice", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "json_schema", "ebnf",
)  # fmt: skip

OTHER_FORMATS = r"text\.format|output_(?:config\.)?format|format"
"""What response_format is called in other APIs."""

# Pattern of a field -> pattern of the whole message after its name, for rules that a schema cannot express.
REASONS: tuple[tuple[str, str], ...] = (
    # rules of the model
    (r"prompt", rf"has {NUMBER} tokens, at least 1 is needed"),
    (r"prompt", rf"has {NUMBER} tokens, the limit is {NUMBER} including at least one output token {CONTEXT}"),
    (r"prompt", rf"has {NUMBER} tokens and max_tokens is {NUMBER}, the limit of their sum is {NUMBER} {CONTEXT}"),
    (r"tokens", rf"must contain token ids from 0 to {NUMBER}"),
    (r"prompt|resume|logit_bias|(bad_words|stop_token|allowed_token)_ids",
     rf": token id {NUMBER} is outside the vocabulary, which has {NUMBER} tokens"),
    (r"logit_bias", rf"must be between 0 and {NUMBER}, got {NUMBER}"),
    (r"logits_processors", r"there is no logits processor '.*'; available are none"),
    (r"(messages|input)(\[\d+\].*)?", r".*(the chat template|private use).*"),
    (r"messages", r"continue_final_message needs a final message of the assistant, got .*"),
    (r"add_special_tokens", r"is not supported: the chat template adds them"),
    (r"input|prompt|text_1|text_2|query|documents",
     rf"(: )?the text has {NUMBER} tokens, the limit is {NUMBER} {CONTEXT}"),
    (r"input|text_1|text_2|query|documents", rf"(: )?prompt has {NUMBER} tokens, at least 1 is needed"),
    (r"messages", rf"has {NUMBER} tokens and max_tokens is {NUMBER}, the limit of their sum is {NUMBER} {CONTEXT}"),
    (r"messages", rf"has {NUMBER} tokens, the limit is {NUMBER} including at least one output token {CONTEXT}"),
    (r"messages\[\d+\]", r"is not possible: the chat template does not write the whole final message, or changes it"),
    (r"messages\[\d+\]", r"ends with a tool_use block, whose tool_result must follow"),
    (r"messages\[\d+\]", r"has no text that the answer continues, only thinking"),
    (r"messages", r"must have at least one message that is not empty"),
    (r"messages\[\d+\]\.content\[\d+\]\.tool_use_id",
     r"must be the id of a tool call in an earlier assistant message"),
    (r"input", rf"prompt: token id {NUMBER} is outside the vocabulary, which has {NUMBER} tokens"),
    (r"dimensions", rf"must be between 1 and {NUMBER}, got {NUMBER}"),
    # summaries in place of conversations
    (r"input", r"has nothing to summarize; .*"),
    (r"input", rf"leaves {NUMBER} tokens of the model's context to the summary, which was cut off; .*"),
    (r"max_output_tokens", rf"is too small: the summary was cut off after {NUMBER} tokens"),
    # rules of several fields
    (r"text_1", rf"one text is compared with all others, or each with one other: got {NUMBER} and {NUMBER} texts"),
    (r"input", rf"has {NUMBER} texts, whose embeddings have {NUMBER} numbers together, the limit is {NUMBER}; .*"),
    (r"structured_outputs", r"needs exactly one of .*, got .*"),
    (r"tool_choice", r"needs tools, got none|names '.*', which is not among the tools"),
    (r"tool_choice", r"cannot force a call, because the request also has a structured output"),
    (r"tools", r"cannot be enforced: the grammar of all tools .*"),
    (r"top_logprobs", r"needs logprobs to be true"),
    (r"messages", r"must have at least one message, because the request has tools"),
    (r"messages\[\d+\]", r"has the role tool, but no message of the assistant before it has a tool call"),
    (r"system", r"cannot be combined with raw: .*"),
    (r"name", r"must be the same as model, or missing"),
    (r"top_logprobs", rf"must be between 0 and {NUMBER}, got {NUMBER}"),
    (r"messages|input|prompt", rf"has {NUMBER} tokens( and \S+ is {NUMBER})?, .* {CONTEXT}"),
    (r"format", r"(?! ?(format )?must be json).+"),
    (rf"{'|'.join(STRUCTURES)}|{OTHER_FORMATS}",
     rf"cannot be combined with ({'|'.join(STRUCTURES)}|{OTHER_FORMATS}| and )+"),
    (r"structured_outputs", r"needs exactly one of json, regex, choice, grammar, json_object, got .+"),
    (r"messages", r"continue_final_message needs a final message (with content|of the assistant, got one of role \w+)"),
    (r"continue_final_message", r"cannot be combined with add_generation_prompt: true"),
    (r"min_tokens", rf"is {NUMBER}, more than max_tokens {NUMBER}"),
    (r"max_tokens", rf"must be between 1 and {NUMBER}, got 0 without echo or prompt_logprobs"),
    (r"(options\.)?stop", rf"has {NUMBER} characters altogether, the limit is {NUMBER}"),
    (r"bad_words", rf"has a word of {NUMBER} tokens, the limit is {NUMBER}"),
    (r"best_of", rf"is {NUMBER}, less than n {NUMBER}"),
    (r"best_of", r"cannot be combined with stream, because the best choice is known only at the end"),
    (r"n", rf"times the number of prompts must be at most {NUMBER}, got {NUMBER}"),
    (r"resume", rf"has tokens of {NUMBER} choices, the request has {NUMBER} of all prompts"),
    (r"resume", rf": token {NUMBER} is not allowed by the grammar"),
    (r"resume", rf"has {NUMBER} tokens for a choice, the limit is max_tokens = {NUMBER}"),
    (r"resume", r"must be a list of lists of token ids, one for each choice"),
    (r"prompt", r"or messages is required, but not both"),
    (r"(messages|input)\[\d+\]\.(tool_)?call_id", r"must be the id of a tool call in an earlier assistant message"),
    (r"tools\[\d+\](\.function)?\.name", r"appears twice: [\w:-]+"),
    (r"input\[\d+\]\.content\[\d+\]", r"must be a part of type 'text', got 'refusal'"),
    # rules of the stored responses
    (r"previous_response_id", r"no response .* is stored: .*"),
    (r"input\[\d+\]\.id", r"names no stored item: .*"),
    (r"input", r"has no message, only reasoning without text"),
    (r"after", r"names no (item of this response|entry of this list)"),
    # rules of files and batches
    (r"input_file_id", r"there is no file .*|names a file of the purpose .*, it must be batch"),
    (r"file", r"is empty|is missing|(the form )?has several fields `file`; .*"),
    (r"", r"the body is not a valid multipart/form-data: Invalid HTTP header.*"),
    (r"", r"the form has more than 32 fields, which is the limit|the form has a field without a name"),
    (r".*", r"has more than 1024 bytes, which is the limit"),
    (r"batch_id", r"a batch whose status is \w+ cannot be cancelled"),
    # values in another language
    (r"(guided_)?(regex|grammar)|ebnf|structured_outputs|response_format",
     rf"(\.\w+)?: .+|must not nest brackets deeper than {NUMBER} levels"),
    (r"text\.format", r"\.schema.+"),
    (r"response_format", r"\.json_schema\.schema.+"),
    (r"guided_json|json_schema|structured_outputs", r"(\.json )?must be JSON: .+"),
    (r"tools\[\d+\](\.function)?\.(parameters|input_schema)", r".+"),
    (r"output_(config\.)?format", r"\.schema.+"),
    # JSON Schema accepts 1.0 as an integer, but servers of OpenAI's API do not
    (r"options\.(top_k|seed|num_predict)|\w*_tokens|\w*_ids|n|best_of|resume|seed|priority|top_k|\w*logprobs|no_repeat_ngram_size|top_n|dimensions",
     r"must be (an integer|a list), got float"),
    (r"prompt", r"must be text, token ids, or a non-empty list of one of them"),
    (r"prompt|input", r"must contain only token ids, got .*\.0"),
    (r"input", r"must be text or token ids, or a list of either, got .*\.0 in it"),
)  # fmt: skip

PLACE = r"^(prompt|input|text_[12]|documents)\[\d+\]: "
"""How the error of one text among several begins."""

TIMEOUT_REASONS = {
    (
        400,
        "timeout_too_short",
        rf"timeout is {NUMBER} s, but the request needs at least {NUMBER} s even without waiting; .*",
    ),
    (408, "timeout", rf"the request did not finish within its timeout of {NUMBER} s"),
    (
        429,
        "deadline_unreachable",
        rf"the request needs at least {NUMBER} s without waiting, {NUMBER} s of its timeout are left",
    ),
    (429, "overloaded", r"1 attempt failed and no other replica can take the request; the last failure: .* is full"),
}
"""Errors of requests whose own timeout is too short; the last one is a router's, whose replica has rejected it."""

BAD_LOGITS = "penalties or logit_bias push this request's logits out of the range of numbers"
LIMITS = ("format", "options")
"""Fields of Ollama's API that together may allow no token."""
NO_TOKEN = r"every token is banned: |no token is left that the structured output allows"
"""How messages begin of errors whose code is no_allowed_token."""

SCALES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
"""Fields that together may change logits to infinity."""

ID_PATHS = ("/admin/requests/{id}", "/admin/replicas/", "/v1/responses/{id}", "/v1/files/{id}", "/v1/batches/{id}")
"""Operations on a request, a replica, a stored response, a file or a batch, which a generated id does not name."""

ENDS = ("event: response", "event: response.completed", "event: response.incomplete", "event: message_stop")
"""Last events of streams of progress, of responses and of messages."""

FAILED = "event: response.failed"
"""Last event of a response that has failed; an event has the error before it."""

CANCEL_PATH = "/v1/responses/{id}/cancel"
"""Operation that no response allows."""

BANS = ("logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "stop_token_ids", *STRUCTURES)
"""Fields that together may allow no token."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Remove fields that exclude each other from every other body.

    Without this, the server would reject almost every generated body.
    """
    body = case.body
    if not _is_positive(case) or not isinstance(body, dict):
        return
    body.pop("resume_fingerprint", None)  # a random one is that of another server
    if len(body) % 2:
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
    """A body that the schema allows is accepted, or rejected for one of REASONS."""
    if not _is_positive(case):
        return
    status = response.status_code
    if 200 <= status < 300 or (status == 401 and not _has_key(response.request)):
        return
    path = case.operation.path
    if status == 404 and path.startswith(ID_PATHS):
        return
    if (
        status == 400
        and path == CANCEL_PATH
        and response.json()["error"]["message"].startswith("the response is complete")
    ):
        return
    _explain(status, _error_object(response.json()["error"]), case)


def _error_object(error: Any) -> dict[str, Any]:
    """Return an error as OpenAI's API has it; Ollama's is a text, which begins with the field."""
    if not isinstance(error, str):
        return dict(error)
    code = "no_allowed_token" if error.startswith(("every token is banned", "no token is left")) else None
    return {"message": error, "param": error.partition(" ")[0].rstrip(":"), "code": code}


@schemathesis.check
def a_stream_has_an_end(context: Any, response: Any, case: Any) -> None:
    """A stream ends with [DONE] or `done`, progress with its response, or each with an error for one of REASONS."""
    if response.headers.get("content-type", [""])[0].startswith("application/x-ndjson"):
        last = json.loads(response.text.rstrip("\n").rpartition("\n")[2])
        if last.get("done") is not True:
            error = _error_object(last["error"])
            _explain(400 if error["code"] == "no_allowed_token" else 408, error, case)
        return
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    blocks = response.text.rstrip("\n").split("\n\n")
    event, _, data = blocks[-1].partition("\n")
    if blocks[-1] == "data: [DONE]" or event in ENDS:
        return
    if event == FAILED:
        event, _, data = next(block for block in blocks if block.startswith("event: error")).partition("\n")
    assert event == "event: error" and data.startswith("data: "), f"the stream ends with {blocks[-1]!r}"
    error = json.loads(data.removeprefix("data: "))
    error = error.get("error", error)
    status = {"no_allowed_token": 400, "timeout": 408, "invalid_request_error": 400, "timeout_error": 408}.get(
        error.get("code", error["type"]), 500
    )
    _explain(status, error, case)


def _has_key(request: Any) -> bool:
    return request.headers.get("authorization") == f"Bearer {ADMIN_KEY}"


def _is_positive(case: Any) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive


def _explain(status: int, error: dict[str, Any], case: Any) -> None:
    """Raise AssertionError if no reason explains a rejection."""
    param, code = error.get("param") or "", error.get("code")
    message = re.sub(PLACE, "", error["message"])
    if any(
        status == reason[0] and code in (None, "", reason[1]) and re.fullmatch(reason[2], message)
        for reason in TIMEOUT_REASONS
    ):
        return
    has_code = "code" in error  # Anthropic's API has neither code nor param, and the message begins with the field
    is_ban = code == "no_allowed_token" if code else re.match(NO_TOKEN, message) is not None
    if status == 400 and is_ban and any(case.body.get(name) for name in (*BANS, *LIMITS)):
        return
    if status == 400 and message.endswith(BAD_LOGITS) and any(case.body.get(name) for name in (*SCALES, "options")):
        return
    if status in (400, 404) and any(
        (re.fullmatch(field, param) or not has_code)
        and re.fullmatch(
            rf"(?:(?:{re.escape(param) if has_code else field}) ?)?(?:{message_pattern})", message, re.DOTALL
        )
        for field, message_pattern in REASONS
    ):
        return
    raise AssertionError(f"no reason explains {status} {code}: {param}: {message}")
