"""ModelInfoRoutes: serves /v1/models, /tokenize, /detokenize and /tokenizer_info, which need no engine step."""

import builtins
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import MAX_TOKENS
from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.field_check import split_fields
from chairlift.protocol.model_details import COMPLETION, EMBEDDING, THINKING, TOOLS, model_details
from chairlift.protocol.model_token_limits import model_token_limits
from chairlift.protocol.request_fields import CHAT, DETOKENIZE, MAX_DETOKENIZED, TOKENIZE, Field
from chairlift.protocol.response_schemas import NAMED_TOKENS
from chairlift.server.openai.chat_request import ChatRequest, read_chat
from chairlift.server.openai.chat_template_fields import read_render_options
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.error_responses import no_route
from chairlift.web.send_response import send_object

OWNER = "chairlift"
FLAGS = {"add_special_tokens": True, "return_token_strs": False}
OF_CHATS = [name for name, field in TOKENIZE.items() if CHAT.get(name) is field and name not in ("model", "messages")]
"""Fields of /tokenize that only change the prompt of a chat."""


class ModelInfoRoutes:
    """The routes /v1/models, /tokenize, /detokenize and /tokenizer_info."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._created = int(time.time())

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List the served model, once under each of its names."""
        self._replica.lifecycle.check()
        await send_object(send, {"object": "list", "data": [*map(self._card, self._replica.config.served_names)]})

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Describe one model. Raises NotFound."""
        self._replica.lifecycle.check()
        if not (name := scope["path_params"]["id"]):
            raise no_route(scope["path"])
        await send_object(send, self._card(self._replica.resolve_model(name)))

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Convert a prompt, or messages, into token ids."""
        await self._convert(scope, receive, send, TOKENIZE, self._tokenize_response)

    async def detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Convert token ids into text."""
        await self._convert(scope, receive, send, DETOKENIZE, self._detokenize_response)

    async def tokenizer_info(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the spellings of the named tokens, null for those that the model does not have.

        Clients that find this route tokenize with /tokenize.
        """
        self._replica.lifecycle.check()
        tokenizer = self._replica.service.tokenizer
        spelled = {} if tokenizer is None else tokenizer.named_tokens
        await send_object(send, {name: spelled.get(name) for name in NAMED_TOKENS})

    async def _convert(
        self, scope: Scope, receive: Receive, send: Send, table: Mapping[str, Field],
        work: Callable[[Mapping[str, Any]], tuple[dict[str, Any], tuple[str, ...]]],
    ) -> None:  # fmt: skip
        """Parse a body by `table` and send what `work` returns for its fields.

        That is the response, and the names of what has no effect within the fields.
        """
        replica = self._replica
        fields, ignored = await replica.bodies.parse_body(scope, receive, lambda body: split_fields(body, table))
        replica.resolve_model(fields.get("model", ""))
        response, unread = await replica.bodies.run_by_body_size(partial(work, fields), scope)
        await send_object(send, response, headers=replica.ignored_fields_header((*ignored, *unread)))

    @property
    def _max_model_len(self) -> int:
        return self._replica.service.client.limits.max_model_len

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": self._created, "owned_by": OWNER,
            **model_token_limits(self._max_model_len), "details": self._details,
        }  # fmt: skip

    @cached_property
    def _details(self) -> dict[str, Any]:
        info, has_template = self._replica.service.client.info, self._replica.service.chat_template is not None
        thinks = has_template and self._replica.formats.reasoning_format is not None
        has = {COMPLETION: True, TOOLS: has_template, THINKING: thinks, EMBEDDING: info.hidden_size > 0}
        return model_details(info.facts, info.device, [name for name, is_there in has.items() if is_there])

    def _tokenize_response(self, fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        flags = {name: boolean(name, fields.get(name, default)) for name, default in FLAGS.items()}
        tokens, unread = self._tokens(fields, flags)
        response: dict[str, Any] = {"count": len(tokens), "max_model_len": self._max_model_len, "tokens": tokens}
        if flags["return_token_strs"]:
            response["token_strs"] = [self._replica.formats.token_pieces.text_of(token) for token in tokens]
        return response, unread

    def _tokens(
        self, fields: Mapping[str, Any], flags: Mapping[str, bool]
    ) -> "tuple[builtins.list[int], tuple[str, ...]]":
        """Return the tokens of a text or of a chat, and the names of what has no effect on the chat."""
        service = self._replica.service
        if service.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer", param="prompt")
        messages, prompt = fields.get("messages"), fields.get("prompt")
        if (messages is None) == (prompt is None):
            raise invalid_param("prompt", "or messages is required, but not both")
        if messages is not None:
            return self._chat_tokens(fields)
        if not isinstance(prompt, str):
            raise invalid_param("prompt", f"must be a string, got {type(prompt).__name__}")
        chat = {name: fields[name] for name in OF_CHATS if fields.get(name) is not None}
        if chat:  # they change no tokens of a text, and are checked all the same
            self._read_chat({**chat, "messages": [{"role": "user", "content": prompt}]})
        unread = read_render_options(fields, service.chat_template)[1]
        return service.tokenizer.encode(prompt, add_special_tokens=flags["add_special_tokens"]), unread

    def _chat_tokens(self, fields: Mapping[str, Any]) -> "tuple[builtins.list[int], tuple[str, ...]]":
        """Return the prompt of a chat completion with these fields, the beginning of a forced call included."""
        replica, service = self._replica, self._replica.service
        if service.tokenizer is None or service.chat_template is None:
            raise InvalidRequest("the model has no chat template", param="messages")
        request = self._read_chat({name: fields[name] for name in CHAT if name in fields})
        choice = request.tools
        messages, tools = replica.formats.template_input(request.messages, None if choice is None else choice.tools)
        rendered = service.chat_template.render_checked(messages, tools=tools, options=request.rendering)
        prefill = "" if choice is None else choice.prefill
        return service.tokenizer.encode_chat(replace(rendered, text=rendered.text + prefill)), request.ignored

    def _read_chat(self, fields: Mapping[str, Any]) -> ChatRequest:
        return read_chat(fields, self._replica.formats.tool_format, self._replica.service.chat_template)

    def _detokenize_response(self, fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        service = self._replica.service
        if service.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer", param="tokens")
        tokens = fields["tokens"]
        if not isinstance(tokens, list) or len(tokens) > MAX_DETOKENIZED:
            raise invalid_param("tokens", f"must be a list of at most {MAX_DETOKENIZED} token ids")
        highest = min(service.client.limits.vocab_size - 1, MAX_TOKENS)
        for token in tokens:
            if type(token) is not int or not 0 <= token <= highest:
                raise invalid_param("tokens", f"must contain token ids from 0 to {highest}")
        return {"prompt": service.tokenizer.decode(tokens, skip_special_tokens=False)}, ()
