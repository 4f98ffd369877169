"""TextService: an engine with its tokenizer and model defaults; turns prompts into GenerateRequests."""

import itertools
import logging
import operator
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

from chairlift.core.adapter_version import NO_ADAPTER, AdapterVersion
from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, TokenOutOfRange
from chairlift.core.numeric_limits import MAX_PRIORITY
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import DEFAULT_MAX_TOKENS, MAX_BAD_WORD_TOKENS, MODEL_DEFAULTS, SamplingParams
from chairlift.core.validation import integer
from chairlift.engine.client.base import EngineClient
from chairlift.engine.client.creator_process import CreatorProcess
from chairlift.engine.request_validation import MAX_REQUEST_ID_CHARS, validate_request
from chairlift.llm.adapter_store import AdapterStore
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.prefix_boundaries import prefix_boundaries
from chairlift.text.chat_template import ChatTemplate, RenderOptions, checked_messages, checked_tools
from chairlift.text.reasoning_formats import ReasoningState
from chairlift.text.template_variables import check_variables
from chairlift.text.tokenizer import Tokenizer, check_text, plain_text

log = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or an object with one of both as `prompt` or `prompt_token_ids`."""

Resume = Sequence[Sequence[int]]
"""For each choice, the output tokens that were delivered before."""

Prediction = str | Sequence[int]
"""Text or token ids that most of an output is expected to be."""

Message = Mapping[str, Any]

PROMPT_FIELDS = ("prompt", "cache_salt")
"""What the error of a prompt may name, of what it has of its own among several."""

GLANCE_CHARS = 8
"""Characters per context token that are tokenized first, to reject a much too long text early."""

MAX_TENANT_CHARS = 256


class RequestOptions(TypedDict, total=False):
    """Keyword arguments that every kind of prompt takes; see GenerateRequest.

    Without a request_id the request gets a new one.
    """

    request_id: str | None
    priority: int
    tenant: str
    timeout: float | None
    resume: Resume
    cache_salt: str
    prediction: Prediction | None
    adapter: AdapterVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class TextService:
    """The shared parts of LLM, AsyncLLM and the API server; built by build.py.

    Attributes:
        client: the engine.
        tokenizer: None when the model folder has none; prompts are then ids, and outputs have no text.
        chat_template: renders messages; None with the tokenizer.
        defaults: the model's defaults.
        model: the name that the user gave.
        max_queue_size: capacity of the engine's waiting queue.
        seeds: source of seeds for requests without one.
        adapters: the LoRA adapters of the engine; None for a service without any.
    """

    client: EngineClient
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    defaults: ModelDefaults
    model: str
    max_queue_size: int
    seeds: random.Random
    adapters: AdapterStore | None = None
    _creator: CreatorProcess = field(default_factory=CreatorProcess)
    _prefix: str = field(default_factory=lambda: secrets.token_hex(4))
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def default_params(self) -> SamplingParams:
        """Return the parameters of a request without any: the model's, and max_tokens 16 where it names none."""
        max_tokens = DEFAULT_MAX_TOKENS if self.defaults.max_tokens is None else self.defaults.max_tokens
        return SamplingParams(**{**MODEL_DEFAULTS, **self.defaults.sampling, "max_tokens": max_tokens})

    def prepare_completion(
        self, prompt: Prompt, params: SamplingParams | None, *, default_max_tokens: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> OutputProcessor:  # fmt: skip
        """Create a validated request from a prompt, with the OutputProcessor for its outputs.

        Without max_tokens an output has at most `default_max_tokens` tokens; None is the model's default, or as many
        as fit.

        Raises InvalidRequest (or a subclass) naming the field, and EngineDead in a fork of the engine's process, where
        a lock of the tokenizer may be held for ever; nothing is queued.
        """
        self._creator.check()
        prompt, options["cache_salt"] = _from_mapping(prompt, options.get("cache_salt", ""))
        text = prompt if isinstance(prompt, str) else None
        ids = _checked_ids(prompt, self.client.limits.vocab_size) if text is None else self._encode(text)
        return self._processor(text, ids, params, default_max_tokens=default_max_tokens, **options)

    def prepare_embedding(
        self, prompt: Prompt, *, pooling: str | None = None, **options: Unpack[RequestOptions]
    ) -> OutputProcessor:  # fmt: skip
        """Create a validated request for the embedding of a prompt; its result has no choice with text.

        Args:
            prompt: text or token ids; see Prompt.
            pooling: one of POOLING_TYPES; None for the model's own.
            options: see RequestOptions.

        Raises InvalidRequest as `prepare_completion` does.
        """
        self._creator.check()
        prompt, options["cache_salt"] = _from_mapping(prompt, options.get("cache_salt", ""))
        text = prompt if isinstance(prompt, str) else None
        ids = _checked_ids(prompt, self.client.limits.vocab_size) if text is None else self._encode(text)
        params = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        return self._processor(text, ids, params, pooling=pooling or self.defaults.pooling, **options)

    def prepare_chat(
        self, messages: Sequence[Message], params: SamplingParams | None, *, tools: Sequence[Message] | None = None,
        prefill: str = "", rendering: RenderOptions | None = None, is_checked: bool = False,
        **options: Unpack[RequestOptions],
    ) -> OutputProcessor:  # fmt: skip
        """Create a validated request from a conversation and the tools that the model may call.

        `is_checked` is for messages and tools of template_input, which are known to be well-formed. `prefill` is the
        beginning of the answer: it ends the prompt, and special tokens in it count as such. A structured output without
        one may have the model's reasoning before it.
        Raises InvalidRequest as `prepare_completion` does.
        """
        self._creator.check()
        if self.tokenizer is None or self.chat_template is None:
            raise InvalidRequest("chat needs a tokenizer, which the model folder does not have", param="messages")
        rendering = rendering or RenderOptions()
        if not is_checked:
            messages, tools = checked_messages(messages), None if tools is None else checked_tools(tools)
        rendered = self.chat_template.render_checked(messages, tools=tools, options=rendering)
        state = self._reasoning_state(rendered.text, messages, rendering)
        if not prefill:
            params = self._behind_reasoning(params, state)
        rendered = replace(rendered, text=rendered.text + prefill)
        self._reject_too_long_text(rendered.text, self.tokenizer)
        ids = tuple(self.tokenizer.encode_chat(rendered))
        boundaries: tuple[int, ...] = ()
        if self.client.info.has_state:
            boundaries = prefix_boundaries(self.chat_template, self.tokenizer, messages, tools, rendering, ids)
        processor = self._processor(rendered.text, ids, params, boundaries=boundaries, **options)
        processor.reasoning_state = state
        return processor

    def rendering(
        self, chat_template_kwargs: Mapping[str, Any] | None = None, *, add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> RenderOptions:  # fmt: skip
        """Return the options of a rendering; logs a warning for variables that the chat template does not read.

        Raises InvalidRequest for variables that may not be set.
        """
        chat = self.chat_template
        variables = check_variables(chat_template_kwargs or {}, () if chat is None else chat.named_tokens)
        if unread := [name for name in variables if chat is not None and name not in chat.variables]:
            log.warning("the chat template does not read %s of chat_template_kwargs", ", ".join(unread))
        return RenderOptions(
            variables=variables, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )  # fmt: skip

    def _reasoning_state(
        self, prompt: str, messages: Sequence[Message], rendering: RenderOptions
    ) -> ReasoningState:  # fmt: skip
        """Return where the output of a prompt begins; ENDED for a model without reasoning."""
        found = None if self.chat_template is None else self.chat_template.reasoning_format
        if found is None:
            return ReasoningState.ENDED
        if rendering.continue_final_message:
            return found.state_after(prompt, continued_text=messages[-1]["content"])
        return found.state_after(prompt) if rendering.has_generation_prompt else ReasoningState.NOT_STARTED

    def _behind_reasoning(self, params: SamplingParams | None, state: ReasoningState) -> SamplingParams | None:
        """Return parameters whose structured output may have the model's reasoning before it."""
        found = None if self.chat_template is None else self.chat_template.reasoning_format
        if found is None or not isinstance(params, SamplingParams) or params.structured is None:
            return params
        if params.structured.reasoning_prefix is not None:
            return params
        return replace(params, structured=replace(params.structured, reasoning_prefix=found.prefix_of(state)))

    def _processor(
        self, text: str | None, ids: tuple[int, ...], params: SamplingParams | None, *, request_id: str | None = None,
        priority: int = 0, tenant: str = "", timeout: float | None = None, resume: Resume = (), cache_salt: str = "",
        prediction: Prediction | None = None, adapter: AdapterVersion = NO_ADAPTER,
        default_max_tokens: int | None = None, pooling: str = "", boundaries: tuple[int, ...] = (),
    ) -> OutputProcessor:  # fmt: skip
        integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        _check_name("tenant", tenant, 0, MAX_TENANT_CHARS)
        _check_name("cache_salt", cache_salt, 0, MAX_TENANT_CHARS)
        if request_id is None:
            request_id = f"req-{self._prefix}-{next(self._numbers)}"
        _check_name("request_id", request_id, 1, MAX_REQUEST_ID_CHARS)
        if params is not None and not isinstance(params, SamplingParams):
            raise InvalidRequest(
                f"sampling_params must be SamplingParams, got {type(params).__name__}", param="sampling_params"
            )
        resolved = self._with_defaults(params, len(ids), default_max_tokens)
        ignores_eos = resolved.ignore_eos and resolved.structured is None  # a grammar decides its end
        request = GenerateRequest(
            request_id=request_id, prompt_token_ids=ids, params=_engine_params(resolved),
            eos_token_ids=() if ignores_eos else self.defaults.eos_token_ids, priority=priority, tenant=tenant,
            timeout=timeout, resume=_resumed(resume), cache_salt=cache_salt, pooling=pooling,
            prefix_boundaries=boundaries, predicted_token_ids=self._predicted_ids(prediction),
            adapter=adapter,
        )  # fmt: skip
        tokenizer = self.tokenizer if resolved.detokenize else None
        return OutputProcessor(validate_request(request, self.client.limits), text, tokenizer, resolved)

    def _encode(self, prompt: str) -> tuple[int, ...]:
        if self.tokenizer is None:
            raise InvalidRequest(
                "the model folder has no tokenizer.json, so a prompt must be token ids", param="prompt"
            )
        self._reject_too_long_text(prompt, self.tokenizer)
        return tuple(self.tokenizer.encode(prompt))

    def _predicted_ids(self, prediction: Prediction | None) -> tuple[int, ...]:
        """Return the tokens of a predicted output, at most max_model_len.

        Special tokens spelled in a text are ordinary text; a text that the tokenizer cannot encode so has no tokens.
        """
        if prediction is None:
            return ()
        limit = self.client.limits.max_model_len
        if not isinstance(prediction, str):
            return _ids(prediction, "prediction", "a string or ")[:limit]
        if self.tokenizer is None:
            raise InvalidRequest(
                "the model folder has no tokenizer.json, so a prediction must be token ids", param="prediction"
            )
        check_text(prediction, "prediction")
        try:
            return tuple(
                self.tokenizer.encode_chat(plain_text(prediction[: 2 * GLANCE_CHARS * limit], self.tokenizer))
            )[:limit]
        except InvalidRequest:
            return ()

    def _reject_too_long_text(self, text: str, tokenizer: Tokenizer) -> None:
        """Raise ContextLengthExceeded when the beginning of a text alone is much too long.

        Tokenizing a megabyte takes hundreds of megabytes. The text after the cut can change the last few tokens of the
        beginning, but not half of them (ADR 0018).
        """
        limit = self.client.limits.max_model_len
        glance = GLANCE_CHARS * limit
        if len(text) <= 2 * glance:
            return
        num_tokens = len(tokenizer.encode(text[:glance], add_special_tokens=False))
        if num_tokens >= 2 * limit:
            raise ContextLengthExceeded(num_tokens, None, limit, or_more=True)

    def _with_defaults(
        self, params: SamplingParams | None, prompt_tokens: int, default_max_tokens: int | None
    ) -> SamplingParams:
        """Fill missing parameters: the default length or the largest that fits, and a generated seed."""
        room = max(1, self.client.limits.max_output_tokens(prompt_tokens))
        default = self.defaults.max_tokens if default_max_tokens is None else default_max_tokens
        if params is None:
            own = self.default_params()
            params, default = replace(own, max_tokens=None), own.max_tokens
        seed = params.seed if params.seed is not None else self.seeds.getrandbits(63)
        if self.tokenizer is None:
            for param in ("stop", "bad_words", "structured"):
                if getattr(params, param):
                    raise InvalidRequest(
                        f"{param} needs a tokenizer, which the model folder does not have", param=param
                    )
        if params.bad_words and self.tokenizer is not None:
            words = {tuple(self.tokenizer.encode(before + word.lstrip(" "), add_special_tokens=False))
                     for word in params.bad_words for before in ("", " ")}  # fmt: skip
            if (longest := max(map(len, words))) > MAX_BAD_WORD_TOKENS:
                raise InvalidRequest(
                    f"bad_words has a word of {longest} tokens, the limit is {MAX_BAD_WORD_TOKENS}", param="bad_words"
                )
            params = replace(params, bad_words_ids=(*params.bad_words_ids, *sorted(words - {()})))
        return params.with_defaults(
            self.defaults.sampling, max_tokens=room if default is None else min(room, default), seed=seed
        )


def _check_name(param: str, value: Any, least: int, most: int) -> None:
    """Reject a value that is not a valid Unicode string of this length."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string, got {type(value).__name__}", param=param)
    if not least <= len(value) <= most:
        raise InvalidRequest(f"{param} must have {least} to {most} characters, got {len(value)}", param=param)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidRequest(f"{param} must be valid Unicode, got half of a surrogate pair", param=param)


def _engine_params(resolved: SamplingParams) -> SamplingParams:
    """Return the parameters for the engine that let the OutputProcessor produce the requested output."""
    params = resolved
    if params.num_choices > params.n and params.logprobs is None:
        params = replace(params, logprobs=0)  # to rank the choices
    if params.max_tokens == 0:
        params = replace(params, max_tokens=1)  # computes the prompt; the token is dropped
    return params


def plain(value: Any) -> Any:
    """Turn a numpy array or a tensor into lists and numbers; return any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def prompts_of(prompts: Any) -> list[Prompt]:
    """Return one or several prompts as a list: a string or a flat list of ids is one prompt."""
    prompts = plain(prompts)
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | set | frozenset):
        raise InvalidRequest(f"prompts must be strings or lists of ids, got {type(prompts).__name__}", param="prompt")
    many = [plain(prompt) for prompt in prompts]
    if many and not any(isinstance(prompt, Iterable) for prompt in many):
        return [many]
    for index, prompt in enumerate(many):
        if not isinstance(prompt, Iterable):
            raise InvalidRequest(
                f"prompts[{index}]: a prompt must be a string or a list of ids, got {prompt!r:.40}", param="prompt"
            )
    return many


def _from_mapping(prompt: Any, cache_salt: str) -> tuple[Any, str]:
    """Return the text or token ids of a prompt, and its cache_salt, if the prompt is an object with these."""
    if not isinstance(prompt, Mapping):
        return prompt, cache_salt
    known = ("prompt", "prompt_token_ids", "cache_salt")
    values = {name: value for name, value in prompt.items() if value is not None}
    if unknown := [name for name in values if name not in known]:
        raise InvalidRequest(
            f"prompt has the field {str(unknown[0])[:40]!r}, which is not supported; supported are {', '.join(known)}",
            param="prompt",
        )
    if ids := values.get("prompt_token_ids"):
        return ids, values.get("cache_salt", cache_salt)  # as in vLLM, the ids win over the text
    if not isinstance(values.get("prompt"), str):
        raise InvalidRequest("prompt needs text in 'prompt' or token ids in 'prompt_token_ids'", param="prompt")
    return values["prompt"], values.get("cache_salt", cache_salt)


def _checked_ids(prompt: Any, vocab_size: int) -> tuple[int, ...]:
    """Return the token ids of a prompt as plain ints, each in the vocabulary."""
    ids = _ids(prompt, "prompt", "a string or ")
    for token in ids:
        if not 0 <= token < vocab_size:
            raise TokenOutOfRange(token, vocab_size)
    return ids


def _resumed(resume: Any) -> tuple[tuple[int, ...], ...]:
    resume = plain(resume)
    if not isinstance(resume, list | tuple):
        expected = "resume must be a list with a list of token ids for each choice"
        raise InvalidRequest(f"{expected}, got {type(resume).__name__}", param="resume")
    return tuple(_ids(tokens, "resume") for tokens in resume)


def _ids(value: Any, param: str, besides: str = "") -> tuple[int, ...]:
    """Return token ids as plain ints; reject any other value."""
    value, expected = plain(value), f"{param} must be {besides}a list of token ids"
    if isinstance(value, str | bytes | Mapping | set | frozenset) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{expected}, got {type(value).__name__}", param=param)
    tokens = list(value)
    if any(isinstance(token, bool) for token in tokens):
        raise InvalidRequest(f"{expected}, got a bool in it", param=param)
    try:
        return tuple(operator.index(token) for token in tokens)
    except TypeError as error:
        raise InvalidRequest(f"{expected}: {error}", param=param) from None
