"""/v1/models, and texts to tokens and back: what can be asked of a model without running it."""

import builtins
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling import MAX_TOKENS
from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.request_fields import DETOKENIZE, MAX_DETOKENIZED, TOKENIZE, Field
from chairlift.server.openai.parse_request import listed_messages, taken
from chairlift.server.openai.tool_choice import check_messages, parsed_arguments, tool_schemas
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.middleware import send_object

OWNER = "chairlift"
FLAGS = {"add_special_tokens": True, "add_generation_prompt": True, "return_token_strs": False}


class Models:
    """The routes of /v1/models, /tokenize and /detokenize."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._created = int(time.time())

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name every model, which is one under all its names."""
        self._replica.lifecycle.check()
        await send_object(send, {"object": "list", "data": [*map(self._card, self._replica.config.served_names)]})

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell of one. Raises ModelNotFound."""
        self._replica.lifecycle.check()
        name = scope["path_params"]["id"]
        self._replica.check_model(name)
        await send_object(send, self._card(name))

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Turn a prompt, or messages, into token ids."""
        await self._convert(scope, receive, send, TOKENIZE, self._tokenized)

    async def detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Turn token ids into text."""
        await self._convert(scope, receive, send, DETOKENIZE, self._text)

    async def _convert(
        self, scope: Scope, receive: Receive, send: Send, table: Mapping[str, Field],
        work: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:  # fmt: skip
        """Read a body and answer what `work` makes of its fields."""
        replica = self._replica
        given, ignored = await replica.read(scope, receive, lambda body: taken(body, table))
        if "model" in given:
            replica.check_model(given["model"])
        headers = replica.ignored(ignored)
        await send_object(send, await replica.by_size(partial(work, given), scope), headers=headers)

    @property
    def _longest(self) -> int:
        return self._replica.service.client.limits.max_model_len

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": self._created, "owned_by": OWNER,
            "max_model_len": self._longest,
        }  # fmt: skip

    def _tokenized(self, given: Mapping[str, Any]) -> dict[str, Any]:
        flags = {name: boolean(name, given.get(name, default)) for name, default in FLAGS.items()}
        tokens = self._tokens(given, flags)
        found: dict[str, Any] = {"count": len(tokens), "max_model_len": self._longest, "tokens": tokens}
        if flags["return_token_strs"]:
            found["token_strs"] = [self._replica.pieces.text_of(token) for token in tokens]
        return found

    def _tokens(self, given: Mapping[str, Any], flags: Mapping[str, bool]) -> "builtins.list[int]":
        service = self._replica.service
        if service.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer", param="prompt")
        messages, prompt, tools = given.get("messages"), given.get("prompt"), given.get("tools")
        if (messages is None) == (prompt is None):
            raise invalid_param("prompt", "or messages is needed, one of them")
        if tools is not None:
            tool_schemas(tools)
        if messages is not None:
            if service.chat_template is None:
                raise InvalidRequest("the model has no chat template", param="messages")
            check_messages(listed_messages(messages))
            rendered = service.chat_template.render(
                parsed_arguments(messages), tools=tools or None, add_generation_prompt=flags["add_generation_prompt"]
            )
            return service.tokenizer.encode_chat(rendered)
        if not isinstance(prompt, str):
            raise invalid_param("prompt", f"must be a string, got {type(prompt).__name__}")
        return service.tokenizer.encode(prompt, add_special_tokens=flags["add_special_tokens"])

    def _text(self, given: Mapping[str, Any]) -> dict[str, Any]:
        service = self._replica.service
        if service.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer", param="tokens")
        tokens = given["tokens"]
        if not isinstance(tokens, list) or len(tokens) > MAX_DETOKENIZED:
            raise invalid_param("tokens", f"must be a list of at most {MAX_DETOKENIZED} token ids")
        highest = min(service.client.limits.vocab_size - 1, MAX_TOKENS)
        for token in tokens:
            if type(token) is not int or not 0 <= token <= highest:
                raise invalid_param("tokens", f"must hold token ids from 0 to {highest}")
        return {"prompt": service.tokenizer.decode(tokens, skip_special_tokens=False)}
