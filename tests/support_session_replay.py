"""Replay of clients' requests: a replica, and a router in front of it, whose model replies as a test says."""

import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from chairlift.router.endpoint import ReplicaKind
from chairlift.server.app import server_app
from chairlift.server.replica import Replica
from chairlift.text.chat_messages import ChatMessages
from chairlift.text.chat_template import RenderOptions
from chairlift.text.template_input import template_input
from chairlift.text.tool_formats.detect import detect_tool_format
from chairlift.web.auth.api_keys import KeyRing
from chairlift.web.auth.credentials import Credentials
from support_chat_templates import template_of
from support_config import make_server_config
from support_router import running_router, serving
from support_scripted_model import CONFIG, TOKENIZER, ScriptedRunner
from support_server import MODEL, events

Json = dict[str, Any]
MAX_LEN = 1 << 19
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
MIN_TOKENS = 4096
"""Least limit of an answer, whose tokens are bytes here."""
REASONING = ("<think>", "</think>")
ENDS = ("<|eos|>", "<|eot_id|>", "<|im_end|>", "<|END_OF_TURN_TOKEN|>", "<end_of_turn>", "<|call|>", "<|return|>")
"""Tokens of templates that end an answer; the scripted model ends it with its own one."""


class ReplayRunner(ScriptedRunner):
    """A ScriptedRunner that gives `reply` to every prompt, and keeps the prompts.

    It has the end of the reasoning where a prompt has its start, and not where a prompt has ended it.
    """

    def __init__(self) -> None:
        super().__init__(replace(CONFIG, max_model_len=MAX_LEN, num_blocks=MAX_LEN // CONFIG.block_size * 2))
        self.reply = ""
        self.prompts: list[str] = []

    def _reply_to(self, prompt: str) -> str:
        self.prompts.append(prompt)
        start, end = REASONING
        if prompt.rstrip().endswith(start) and end not in self.reply:
            return end + self.reply
        return self.reply.rpartition(end)[2].lstrip() if prompt.rstrip().endswith(end) else self.reply


@dataclass
class Replay:
    """A model of one chat template behind a replica and a router.

    Attributes:
        clients: place, "direct" or "router" -> client of it.
        runner: the scripted model.
    """

    clients: Mapping[str, httpx.AsyncClient]
    runner: ReplayRunner

    async def send(self, place: str, path: str, body: Json, reply: str) -> tuple[httpx.Response, str]:
        """POST a request to which the model replies with `reply`; return the response and the prompt."""
        self.runner.reply = reply
        self.runner.prompts.clear()
        limits = {name: max(body[name], MIN_TOKENS) for name in LIMITS if body.get(name)}
        response = await self.clients[place].post(path, json={**body, **limits, "model": MODEL})
        assert response.status_code == 200, (path, response.text)
        assert len(self.runner.prompts) <= 1, "one prompt of one request"
        return response, "".join(self.runner.prompts)


@asynccontextmanager
async def replaying(name: str) -> AsyncIterator[Replay]:
    """Serve a model that has the chat template of this name, directly and through a router."""
    runner = ReplayRunner()
    scheduler = SchedulerConfig(max_batch_tokens=MAX_LEN)
    vocabulary = GrammarTokenizer(TOKENIZER.serialized().encode(), TOKENIZER.eos_token_ids)
    service = TextService(
        client=InlineClient(EngineLoop(runner, scheduler), vocabulary), tokenizer=TOKENIZER,
        chat_template=template_of(name), defaults=ModelDefaults(eos_token_ids=TOKENIZER.eos_token_ids), model=MODEL,
        max_queue_size=scheduler.max_queue_size, seeds=random.Random(5),
    )  # fmt: skip
    replica = Replica(make_server_config(MODEL), None)

    async def drain() -> None:
        replica.lifecycle.drain()

    replica.attach_service(service, lambda: None, scheduler.max_batch_tokens)
    try:
        async with (
            serving(server_app(replica, Credentials(KeyRing()), drain).asgi) as url,
            running_router([url], kind=ReplicaKind.CHAIRLIFT, models=(MODEL,)) as router,
            httpx.AsyncClient(base_url=url, timeout=60) as direct,
            httpx.AsyncClient(base_url=router.url, timeout=60) as routed,
        ):
            yield Replay({"direct": direct, "router": routed}, runner)
    finally:
        await replica.close()


def written_call(name: str, function: str, arguments: Json) -> str:
    """Return a call in the notation of a template's model."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": function, "arguments": json.dumps(arguments)}}
    return _written(name, {"role": "assistant", "tool_calls": [call]}, function)


def written_text(name: str, text: str, *, has_tools: bool) -> str:
    """Return an answer with a text as a template's model writes it where it has tools, or where it has none."""
    template = template_of(name)
    if has_tools and not template.abilities(with_tools=True).tools:
        return json.dumps({"response": text})
    return _written(name, {"role": "assistant", "content": text}, "f" if has_tools else "")


def _written(name: str, answer: Json, function: str) -> str:
    """Return what a template writes of an answer behind the prompt that ends with the beginning of one."""
    template = template_of(name)
    tool_format = detect_tool_format(template.text, takes_tools=template.abilities(with_tools=True).tools)
    tool = {"type": "function", "function": {"name": function, "description": "", "parameters": {}}}
    user = {"role": "user", "content": "Hello."}
    texts = []
    for messages in ([user], [user, answer]):
        plain, offered = template_input(
            ChatMessages.parse(messages), [tool] if function else None, tool_format, template
        )
        options = RenderOptions(add_generation_prompt=len(messages) == 1)
        texts.append(template.render_checked(plain, tools=offered, options=options).text)
    assert texts[1].startswith(texts[0])
    written = texts[1].removeprefix(texts[0])
    return written[: min((written.index(end) for end in ENDS if end in written), default=len(written))]


@dataclass(frozen=True)
class Call:
    """A call that an API's response has."""

    id: str
    name: str
    arguments: Json


def answer_of(path: str, response: httpx.Response) -> tuple[str, list[Call]]:
    """Return the text and the calls of a response, whole or streamed, of the API of a path."""
    kind = response.headers["content-type"]
    is_streamed = not kind.startswith("application/json")
    match path.partition("?")[0]:
        case "/v1/chat/completions":
            return _chat_answer(response, is_streamed)
        case "/v1/messages":
            return _message_answer(response, is_streamed)
        case "/v1/responses":
            items = (_events(response)[-1]["response"] if is_streamed else response.json())["output"]
            parts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
            made = [item for item in items if item["type"] == "function_call"]
            calls = [Call(item["call_id"], item["name"], json.loads(item["arguments"])) for item in made]
            return "".join(parts), calls
        case _:
            messages = [json.loads(line)["message"] for line in response.text.splitlines()]
            functions = [call["function"] for each in messages for call in each.get("tool_calls") or []]
            calls = [Call("", each["name"], each["arguments"]) for each in functions]
            return "".join(each["content"] for each in messages), calls


def _events(response: httpx.Response) -> list[Json]:
    return [each[1] if isinstance(each, tuple) else each for each in events(response.text) if each != "[DONE]"]


def _chat_answer(response: httpx.Response, is_streamed: bool) -> tuple[str, list[Call]]:
    bodies, member = (_events(response), "delta") if is_streamed else ([response.json()], "message")
    text, parts = "", dict[int, list[str]]()
    for message in (choice[member] for body in bodies for choice in body["choices"]):
        text += message.get("content") or ""
        for number, each in enumerate(message.get("tool_calls") or []):
            part = parts.setdefault(each.get("index", number), ["", "", ""])
            part[0] += each.get("id") or ""
            part[1] += each["function"].get("name") or ""
            part[2] += each["function"].get("arguments") or ""
    return text, [Call(call_id, name, json.loads(arguments)) for call_id, name, arguments in parts.values()]


def _message_answer(response: httpx.Response, is_streamed: bool) -> tuple[str, list[Call]]:
    blocks: dict[int, Json] = {} if is_streamed else dict(enumerate(response.json()["content"]))
    for event in _events(response) if is_streamed else ():
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            block["text"] = block.get("text", "") + delta.get("text", "")
            block["json"] += delta.get("partial_json", "")
    text = "".join(each["text"] for each in blocks.values() if each["type"] == "text")
    made = [each for each in blocks.values() if each["type"] == "tool_use"]
    return text, [
        Call(each["id"], each["name"], json.loads(each["json"]) if each.get("json") else each["input"]) for each in made
    ]


def with_result(path: str, body: Json, call: Call, result: str) -> Json:
    """Return a request's body with a call behind its messages, and the result of the call."""
    text = json.dumps(call.arguments)
    match path.partition("?")[0]:
        case "/v1/chat/completions":
            function = {"name": call.name, "arguments": text}
            more = [
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": call.id, "type": "function", "function": function},
                ]},
                {"role": "tool", "tool_call_id": call.id, "content": result},
            ]  # fmt: skip
        case "/v1/messages":
            more = [
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result}]},
            ]  # fmt: skip
        case "/v1/responses":
            made = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": text}
            before = body["input"]
            before = [{"role": "user", "content": before}] if isinstance(before, str) else before
            more = [made, {"type": "function_call_output", "call_id": call.id, "output": result}]
            return {**body, "input": [*before, *more]}
        case _:
            function = {"name": call.name, "arguments": call.arguments}
            more = [
                {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
                {"role": "tool", "tool_name": call.name, "content": result},
            ]
    return {**body, "messages": [*body["messages"], *more]}


def value_of(schema: Any, text: str) -> Any:
    """Return a small value of a JSON Schema; strings without an enumeration are `text`."""
    schema = schema if isinstance(schema, dict) else {}
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return value_of(schema[keyword][0], text)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            required = schema.get("required") or ()
            return {
                name: value_of(each, text) for name, each in schema.get("properties", {}).items() if name in required
            }
        case "array":
            return [value_of(schema.get("items"), text)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return text


def first_function(body: Json) -> tuple[str, Json] | None:
    """Return the name and the parameters of a request's first function, None without one."""
    for tool in body.get("tools") or []:
        if tool.get("type") in ("function", None):
            function = tool.get("function") or tool
            return function["name"], function.get("parameters") or function.get("input_schema") or {}
    return None
