"""CHAT, COMPLETION, EMBEDDING and others: the fields of each route's request body, declared once.

Parsing, the list of ignored fields, the rejection of unsupported ones and the OpenAPI page use these tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from chairlift.core.chat_template_names_and_limits import (
    MAX_VARIABLES,
    REASONING_EFFORTS,
    REQUEST_FIELDS,
    RESERVED_VARIABLES,
)
from chairlift.core.numeric_limits import MAX_HTTP_TIMEOUT_SECONDS, MAX_PRIORITY, MIN_HTTP_PRIORITY
from chairlift.core.request import POOLING_TYPES
from chairlift.core.sampling_params import (
    FLOAT_BOUNDS,
    INT_BOUNDS,
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGITS_PROCESSORS,
    MAX_STOP_CHARS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKENS,
)
from chairlift.core.structured_output import MAX_CHOICE_STRINGS, MAX_STRUCTURED_CHARS
from chairlift.protocol.request_schemas import (
    JSON_SCHEMA,
    MAX_DOCUMENTS,
    MAX_TOOLS,
    MESSAGE,
    PREDICTION,
    RESPONSE_FORMAT,
    STREAM_OPTIONS,
    STRUCTURED_OUTPUTS,
    TOOL,
    TOOL_CHOICE,
    Schema,
    one_or_many,
    processors,
)

EMBEDDING_FORMATS = ("float", "base64")

DEFAULT_COMPLETION_TOKENS = 16
"""Output tokens of a completion without max_tokens, as in OpenAI's API; fewer where fewer fit."""

MAX_TOP_LOGPROBS = 20
MAX_MESSAGES = 8192
MAX_PROMPTS = 128
MAX_INPUTS = 2048
"""Texts of one request for embeddings or scores."""
MAX_FINGERPRINT_CHARS = 128
MAX_SALT_CHARS = 128
MAX_MODEL_CHARS = 1000
MAX_MODALITIES = 8
MAX_DETOKENIZED = 1_000_000


class Effect(Enum):
    """How the server treats a field."""

    USED = "used"
    IGNORED = "ignored"  # the header x-ignored-parameters names it
    REFUSED = "refused"  # the response would differ in kind, and the server does not support it


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request body.

    Attributes:
        schema: schema of its value; null is the same as absent, unless the field is required.
        help: description in one line.
        effect: how the server treats it.
        sampling: whether it is a field of SamplingParams by the same name.
        required: whether a request without it is invalid.
        neutral: values of an unsupported field that mean the same as its absence.
    """

    schema: Schema
    help: str = ""
    effect: Effect = Effect.USED
    sampling: bool = False
    required: bool = False
    neutral: tuple[Any, ...] = ()


_ID: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}
_TOKENS: Schema = {"type": "array", "items": _ID}
_SHORT: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_CHARS}
_LONG: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STRUCTURED_CHARS}
_TEXTS: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MAX_PROMPTS}


def number(name: str, help: str) -> Field:
    """Declare a field of SamplingParams that is a number."""
    low, high, open_low = FLOAT_BOUNDS[name]
    least = {"exclusiveMinimum": low} if open_low else {"minimum": low}
    return Field({"type": "number", **least, "maximum": high}, help, sampling=True)


def whole(name: str, help: str, least: int | None = None) -> Field:
    """Declare a field of SamplingParams that is an integer; `least` replaces its lower bound."""
    low, high = INT_BOUNDS[name]
    low = low if least is None else least
    return Field({"type": "integer", "minimum": low, "maximum": high}, help, sampling=True)


def _flag(help: str, *, sampling: bool = False) -> Field:
    return Field({"type": "boolean"}, help, sampling=sampling)


def _ids(most: int, help: str) -> Field:
    return Field(one_or_many(_ID, most), help, sampling=True)


def _ignored(kind: str = "", help: str = "") -> Field:
    return Field({"type": kind} if kind else {}, help or "has no effect here", Effect.IGNORED)


def _refused(help: str, *neutral: Any) -> Field:
    schema: Schema = {"enum": [None, *neutral]} if neutral else {"type": "null"}
    return Field(schema, help, Effect.REFUSED, neutral=neutral)


AS_MANY_AS_FIT = -1
"""As the maximum number of output tokens: no limit but that of the context."""

OUTPUT_TOKENS: Schema = {
    "type": "integer", "minimum": AS_MANY_AS_FIT, "maximum": MAX_TOKENS, "not": {"const": 0},
}  # fmt: skip

MODEL: Schema = {"type": "string", "maxLength": MAX_MODEL_CHARS}
"""Name of a model; /v1/models lists those of the server. Empty, it is as absent: the only model."""

_SAMPLING: Mapping[str, Field] = {
    "temperature": number("temperature", "0 is greedy"),
    "top_p": number("top_p", "sample from the likeliest tokens whose probabilities sum to this; 0 keeps one"),
    "n": whole("n", "number of choices"),
    "seed": whole("seed", "seed of sampling; the same seed gives the same output"),
    "presence_penalty": number("presence_penalty", "subtracted from the logits of tokens in the output"),
    "frequency_penalty": number("frequency_penalty", "subtracted from a token's logit per appearance in the output"),
    "logit_bias": Field(
        {"type": "object", "maxProperties": MAX_LOGIT_BIAS, "propertyNames": {"pattern": "^[0-9]{1,10}$"},
         "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
        "token id -> value added to its logit; -100 bans it", sampling=True,
    ),
    "stop": Field(
        one_or_many(_SHORT, MAX_STOP_STRINGS),
        f"the output ends where one of these appears; together they have at most {MAX_STOP_CHARS:,} characters",
        sampling=True,
    ),
    "top_k": whole("top_k", "sample from the K likeliest tokens; 0 or -1 is all"),
    "min_p": number("min_p", "drop tokens below this share of the likeliest one's probability"),
    "typical_p": number("typical_p", "sample from the most typical tokens whose probabilities sum to this"),
    "epsilon_cutoff": number("epsilon_cutoff", "drop tokens less likely than this"),
    "eta_cutoff": number("eta_cutoff", "like epsilon_cutoff, with a bound that falls with the entropy"),
    "repetition_penalty": number("repetition_penalty", "divides the logits of tokens in the prompt or the output"),
    "no_repeat_ngram_size": whole("no_repeat_ngram_size", "no sequence of this many tokens appears twice"),
    "min_tokens": whole("min_tokens", "minimum number of output tokens"),
    "ignore_eos": _flag("the model's end-of-text tokens do not end the output", sampling=True),
    "stop_token_ids": _ids(MAX_STOP_TOKEN_IDS, "token ids that end the output"),
    "allowed_token_ids": _ids(MAX_ALLOWED_TOKEN_IDS, "only these tokens are sampled"),
    "bad_words": Field(one_or_many(_SHORT, MAX_BAD_WORDS), "the output contains none of these", sampling=True),
    "skip_special_tokens": _flag("leave special tokens out of the text", sampling=True),
    "include_stop_str_in_output": _flag("keep the stop string in the text", sampling=True),
    "logits_processors": Field(
        processors(_SHORT, MAX_LOGITS_PROCESSORS), "names of processors that this server has loaded", sampling=True
    ),
}  # fmt: skip

_OURS: Mapping[str, Field] = {
    "regex": Field(_LONG, "the output matches this regular expression"),
    "grammar": Field(_LONG, "the output follows this grammar"),
    "choice": Field(one_or_many(_LONG, MAX_CHOICE_STRINGS, least=1), "the output is one of these"),
    "structured_outputs": Field(STRUCTURED_OUTPUTS, "the output follows its one constraint, as in vLLM"),
    "guided_json": Field(JSON_SCHEMA, "the output follows this JSON Schema"),
    "guided_regex": Field(_LONG, "the output matches this regular expression"),
    "guided_choice": Field(one_or_many(_LONG, MAX_CHOICE_STRINGS, least=1), "the output is one of these"),
    "guided_grammar": Field(_LONG, "the output follows this grammar"),
    "json_schema": Field(JSON_SCHEMA, "the output follows this JSON Schema"),
    "ebnf": Field(_LONG, "the output follows this grammar"),
    "guided_decoding_backend": _ignored("string", "there is one backend"),
    "priority": Field(
        {"type": "integer", "minimum": MIN_HTTP_PRIORITY, "maximum": MAX_PRIORITY},
        "a request with a smaller number is scheduled first",
    ),
    "timeout": Field(
        {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_HTTP_TIMEOUT_SECONDS},
        "seconds that the request may take",
    ),
    "return_token_ids": _flag("every choice has token_ids, every chunk its output position"),
    "resume": Field(
        {"type": "array", "items": _TOKENS},
        "for each choice of all prompts the output tokens that were delivered before",
    ),
    "resume_fingerprint": Field(
        {"type": "string", "maxLength": MAX_FINGERPRINT_CHARS},
        "fingerprint of the server whose tokens `resume` has, as /load reports it; 409 on a server with another one",
    ),
    "cache_salt": Field(
        {"type": "string", "minLength": 1, "maxLength": MAX_SALT_CHARS},
        "requests share cached prefixes only with requests of the same salt",
    ),
}

CONSTRAINTS = (
    "response_format", "regex", "grammar", "choice", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "json_schema", "ebnf",
)  # fmt: skip
"""Names of the fields that constrain the output; beside them some models' prompts have no tools."""

_COMMON: Mapping[str, Field] = {
    "model": Field(MODEL, "name of a model in /v1/models; without it the only one"),
    "stream": _flag("send the response as server-sent events"),
    "stream_options": Field(
        STREAM_OPTIONS,
        "include_usage: a last chunk with token counts; continuous_usage_stats: in each chunk those so far, too; "
        "without stream they are ignored",
    ),
    "response_format": Field(
        RESPONSE_FORMAT, "text, or what the output follows: json_object, json_schema, regex, grammar"
    ),
    **_SAMPLING,
    **_OURS,
    "user": Field({"type": "string"}, "shown in the log"),
    "guided_whitespace_pattern": _refused("the grammar decides on white space"),
    "structural_tag": _refused("use tools, grammar or response_format"),
    "use_beam_search": _refused("there is no beam search", False),
    "length_penalty": _ignored("number", "only beam search uses it"),
    "truncate_prompt_tokens": _refused("shorten the prompt"),
    "spaces_between_special_tokens": _ignored("boolean", "the tokenizer decides"),
    "return_tokens_as_token_ids": _refused("use return_token_ids", False),
    "logprob_token_ids": _refused("use logprobs", []),
    "repetition_detection": _refused("use repetition_penalty or no_repeat_ngram_size"),
    "thinking_token_budget": _refused("use max_tokens"),
    "chat_template": _refused("the operator chooses the chat template"),
    "prompt_logprobs": _refused("use echo and logprobs of /v1/completions"),
}  # fmt: skip

_MESSAGES: Schema = {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES}
_TOOLS = Field({"type": "array", "items": TOOL, "maxItems": MAX_TOOLS}, "functions that the model may call")

_UNSETTABLE = sorted(REQUEST_FIELDS | RESERVED_VARIABLES)
_RENDERING: Mapping[str, Field] = {
    "chat_template_kwargs": Field(
        {"type": "object", "maxProperties": MAX_VARIABLES, "propertyNames": {"not": {"enum": _UNSETTABLE}}},
        "variables of the chat template, as in {\"enable_thinking\": false}",
    ),
    "add_generation_prompt": _flag(
        "for a conversation: whether to add the beginning of the assistant's message (default)"
    ),
    "continue_final_message": _flag("whether the output continues the final message, which must be the assistant's"),
}  # fmt: skip

CHAT: Mapping[str, Field] = {
    **_COMMON,
    "messages": Field(_MESSAGES, "the conversation", required=True),
    "max_tokens": Field(
        OUTPUT_TOKENS, "maximum number of output tokens; without it, or with -1, as many as fit", sampling=True
    ),
    "max_completion_tokens": Field(OUTPUT_TOKENS, "newer name of max_tokens; it takes precedence"),
    "logprobs": _flag("whether to return the logprobs of the output's tokens"),
    "top_logprobs": Field(
        {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
        "number of likeliest tokens to return with each token",
    ),
    **_RENDERING,
    "reasoning_effort": Field(
        {"enum": list(REASONING_EFFORTS)}, "how much to reason, for chat templates that can tell the model"
    ),
    "documents": Field(
        {"type": "array", "items": {"type": "object"}, "maxItems": MAX_DOCUMENTS},
        "documents for chat templates that read them",
    ),
    "include_reasoning": _flag("whether the response has the model's reasoning (default)"),
    "tools": _TOOLS,
    "tool_choice": Field(TOOL_CHOICE, "none, auto, required, the function to call, or allowed_tools"),
    "parallel_tool_calls": _flag("whether a response may have several calls (default)"),
    "modalities": Field(one_or_many({"const": "text"}, MAX_MODALITIES), "only text is supported"),
    "prediction": Field(
        PREDICTION, "text that most of the output is expected to be, such as a file before an edit; only for speed"
    ),
    "functions": _refused("use tools", []),
    "best_of": _refused("use n, or best_of of /v1/completions", 1),
    "echo": _refused("use echo of /v1/completions", False),
    "add_special_tokens": _refused("the chat template adds them", False),
    "function_call": _refused("use tool_choice", "none", "auto"),
    **dict.fromkeys(("store", "audio", "metadata", "moderation", "safety_identifier",
                     "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "verbosity",
                     "web_search_options"), _ignored()),
}  # fmt: skip
"""Name of each field of /v1/chat/completions -> its declaration."""

COMPLETION: Mapping[str, Field] = {
    **_COMMON,
    "chat_template_kwargs": _refused("a prompt is not rendered by the chat template; use /v1/chat/completions"),
    "prompt": Field(
        {"anyOf": [
            {"type": "string"}, _TEXTS, {**_TOKENS, "minItems": 1},
            {"type": "array", "items": {**_TOKENS, "minItems": 1}, "minItems": 1, "maxItems": MAX_PROMPTS},
        ]},
        "text or token ids, or a list of either", required=True,
    ),
    "max_tokens": Field(
        {"type": "integer", "minimum": AS_MANY_AS_FIT, "maximum": MAX_TOKENS},
        f"maximum number of output tokens, {DEFAULT_COMPLETION_TOKENS} by default; -1 for as many as fit; 0 with echo",
        sampling=True,
    ),
    "fill_context": _flag("without max_tokens: as many output tokens as fit, as chat completions have"),
    "best_of": whole("best_of", "number of choices to sample, of which the n likeliest are returned; not with stream"),
    "echo": _flag("the text begins with the prompt"),
    "logprobs": Field(
        {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
        "number of likeliest tokens to return with each token",
    ),
    "suffix": _refused("no model here supports infilling", ""),
    "add_special_tokens": _refused("send token ids as the prompt", True),
    "prompt_embeds": _refused("send text or token ids"),
}  # fmt: skip
"""Name of each field of /v1/completions -> its declaration."""

_INPUT_TEXTS: Schema = one_or_many({"type": "string", "minLength": 1}, MAX_INPUTS, least=1)
_POOLED: Mapping[str, Field] = {
    "model": _COMMON["model"],
    "pooling": Field(
        {"enum": list(POOLING_TYPES)},
        "last: the state of the last token; mean: the mean of all; without it what the model folder names, or last",
    ),
    "user": _COMMON["user"],
    "n": _refused("each text has one embedding", 1),
    "stream": _refused("the response comes whole", False),
    "truncate_prompt_tokens": _refused("shorten the input"),
    "add_special_tokens": _refused("send token ids as the input", True),
    **{name: _OURS[name] for name in ("priority", "timeout", "cache_salt")},
}  # fmt: skip

EMBEDDING: Mapping[str, Field] = {
    **_POOLED,
    "input": Field(
        {"anyOf": [
            {"type": "string", "minLength": 1}, {**_TEXTS, "maxItems": MAX_INPUTS}, {**_TOKENS, "minItems": 1},
            {"type": "array", "items": {**_TOKENS, "minItems": 1}, "minItems": 1, "maxItems": MAX_INPUTS},
        ]},
        "text or token ids, or a list of either", required=True,
    ),
    "encoding_format": Field({"enum": list(EMBEDDING_FORMATS)}, "float: numbers (default); base64: float32 bytes"),
    "dimensions": Field(
        {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
        "how many numbers an embedding has, the first ones; at most the model's",
    ),
    "normalize": _flag("scale each embedding to a Euclidean length of 1 (default)"),
    "embed_dtype": _ignored("string", "base64 has float32 numbers"),
    "input_type": _ignored("string", "write the instruction into the input"),
}  # fmt: skip
"""Name of each field of /v1/embeddings -> its declaration."""

SCORE: Mapping[str, Field] = {
    **_POOLED,
    "text_1": Field(_INPUT_TEXTS, "one text, or as many as text_2 has", required=True),
    "text_2": Field(_INPUT_TEXTS, "the texts that are compared with text_1", required=True),
}
"""Name of each field of /v1/score -> its declaration."""

_DOCUMENT: Schema = {"anyOf": [
    {"type": "string", "minLength": 1},
    {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}},
]}  # fmt: skip

RERANK: Mapping[str, Field] = {
    **_POOLED,
    "query": Field({"type": "string", "minLength": 1}, "the text that documents are ranked by", required=True),
    "documents": Field(
        {"type": "array", "items": _DOCUMENT, "minItems": 1, "maxItems": MAX_INPUTS}, "texts, or objects with `text`",
        required=True,
    ),
    "top_n": Field(
        {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}, "how many results to return; 0 or null is all"
    ),
    "return_documents": _flag("whether the results have the texts (default)"),
    "max_tokens_per_doc": _refused("shorten the documents"),
    "rank_fields": _refused("send the text that is to be ranked"),
}  # fmt: skip
"""Name of each field of /v1/rerank -> its declaration."""

POOLING_ROUTES: Mapping[str, Mapping[str, Field]] = {
    "/v1/embeddings": EMBEDDING, "/v1/score": SCORE, "/v1/rerank": RERANK,
}  # fmt: skip
"""Path of each route whose responses are made of the pooled hidden states of texts -> its fields."""

TOKENIZE: Mapping[str, Field] = {
    "model": Field(MODEL, "name of a model in /v1/models; without it the only one"),
    "prompt": Field({"type": "string"}, "text to tokenize"),
    "messages": Field(_MESSAGES, "or a conversation, which is rendered to a prompt and tokenized"),
    **{name: CHAT[name] for name in ("tools", "tool_choice", "parallel_tool_calls", *CONSTRAINTS)},
    "add_special_tokens": _flag("for a text: whether to add the tokens with which the model's prompts begin (default)"),
    **{name: CHAT[name] for name in (*_RENDERING, "reasoning_effort", "documents")},
    "return_token_strs": _flag("whether to return the text of each token, too"),
}
"""Name of each field of /tokenize -> its declaration."""

DETOKENIZE: Mapping[str, Field] = {
    "model": TOKENIZE["model"],
    "tokens": Field({**_TOKENS, "maxItems": MAX_DETOKENIZED}, "token ids", required=True),
}
"""Name of each field of /detokenize -> its declaration."""
