"""Jobs: what `generate` shall do, read from --prompt or from a JSONL file and checked before any model is loaded."""

import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling import SAMPLING_FIELDS, SamplingParams
from chairlift.core.structured_output import STRUCTURED_FIELDS, StructuredOutput
from chairlift.text.chat_template import checked_tools

STDIN = "-"
OWN_FIELDS = ("id", "prompt", "messages", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptItem:
    """One prompt.

    Attributes:
        name: what a result is known by: the line's "id", else its number in the file.
        asked: "prompt" or "messages" and its value, as it was given.
        params: the command line's sampling options under those of the line.
        tools: what may be called, as they were given; None without any.
        where: "prompts.jsonl line 17" for error messages; "" for --prompt.
    """

    name: str | int
    asked: tuple[str, Any]
    params: SamplingParams = field(default_factory=SamplingParams)
    tools: list[dict[str, Any]] | None = None
    where: str = ""


def at_line(where: str, said: str) -> InvalidRequest:
    """Make an error that says in which line it is."""
    return InvalidRequest(f"{where}: {said}" if where else said)


def read_prompt(prompt: str, sampling: Mapping[str, Any], *, chat: bool) -> PromptItem:
    """Make the job of --prompt; "-" is read from standard input, without its last newline."""
    if prompt == STDIN:
        try:
            prompt = sys.stdin.read().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"standard input is not UTF-8: {error}") from None
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    return PromptItem(name=0, asked=_said(prompt) if chat else ("prompt", prompt), params=sampling_params(sampling))


def read_prompts(path: str, sampling: Mapping[str, Any], *, chat: bool, ids_too: bool = False) -> list[PromptItem]:
    """Read a JSONL file ("-" is standard input) of prompts.

    A line is an object with "prompt" (text or token ids) or "messages" (beside which "tools" may stand), and may have
    "id" and fields of SamplingParams. With `chat` texts become messages; token ids are refused then, unless `ids_too`.
    Empty lines are skipped. Raises InvalidRequest naming file and line, also for a file without any prompt.
    """
    sampling_params(sampling)
    jobs: list[PromptItem] = []
    seen: dict[str | int, str] = {}
    shown = "standard input" if path == STDIN else path
    with _opened(path) as file:
        for number, line in enumerate(_lines(file, shown), start=1):
            where = f"{shown} line {number}"
            if not line.strip():
                continue
            job = _job(line, number, where, sampling, chat=chat, ids_too=ids_too)
            if job.name in seen:
                raise at_line(where, f"id {job.name!r} is already that of {seen[job.name]}")
            seen[job.name] = f"line {number}"
            jobs.append(job)
    if not jobs:
        raise InvalidRequest(f"{shown} has no prompts")
    return jobs


def _said(prompt: str) -> tuple[str, Any]:
    return "messages", [{"role": "user", "content": prompt}]


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except OSError as error:
            raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None
        yield file


def _lines(file: BinaryIO, shown: str) -> Iterator[str]:
    """Walk the lines, decoded one by one, so that a broken one can be named."""
    try:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise at_line(f"{shown} line {number}", f"is not UTF-8: {error.reason}") from None
    except OSError as error:
        raise InvalidRequest(f"cannot read {shown}: {error.strerror or error}") from None


def _job(
    line: str, number: int, where: str, sampling: Mapping[str, Any], *, chat: bool, ids_too: bool
) -> PromptItem:  # fmt: skip
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise at_line(where, f"is not JSON: {error.msg} (column {error.colno})") from None
    except (RecursionError, ValueError) as error:
        raise at_line(where, f"is not JSON that can be read: {error}") from None
    if not isinstance(entry, dict):
        raise at_line(where, f'must be an object like {{"prompt": "..."}}, it is {_kind(entry)}')
    for name in entry:
        if name not in OWN_FIELDS + SAMPLING_FIELDS:
            _unknown(name, where)
    name = entry.get("id", number)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise at_line(where, f"id must be a string or an integer, got {_kind(name)}")
    asked = _asked(entry, where, chat=chat, ids_too=ids_too)
    tools = _tools(entry.get("tools"), where, has_messages=asked[0] == "messages")
    return PromptItem(name=name, asked=asked, params=_params(entry, where, sampling), tools=tools, where=where)


def _unknown(name: str, where: str) -> NoReturn:
    near = difflib.get_close_matches(name, OWN_FIELDS + SAMPLING_FIELDS, n=1)
    hint = f", did you mean {near[0]!r}?" if near else f"; there is {', '.join(OWN_FIELDS + SAMPLING_FIELDS)}"
    raise at_line(where, f"unknown field {name!r}{hint}")


def _tools(tools: Any, where: str, *, has_messages: bool) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not has_messages:
        raise at_line(where, "tools need messages, or a prompt that --chat makes one")
    try:
        return checked_tools(tools)
    except InvalidRequest as error:
        raise at_line(where, error.message) from None


def _asked(entry: Mapping[str, Any], where: str, *, chat: bool, ids_too: bool) -> tuple[str, Any]:
    if ("prompt" in entry) == ("messages" in entry):
        raise at_line(where, 'needs either "prompt" or "messages"')
    if "messages" in entry:
        messages = entry["messages"]
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            raise at_line(where, "messages must be a list of objects, at least one")
        return "messages", messages
    prompt = entry["prompt"]
    if isinstance(prompt, str) and prompt:
        return _said(prompt) if chat else ("prompt", prompt)
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise at_line(where, "prompt must be text or a list of token ids, and not empty")
    if chat and not ids_too:
        raise at_line(where, "--chat needs text or messages, got token ids")
    return "prompt", prompt


def _params(entry: Mapping[str, Any], where: str, sampling: Mapping[str, Any]) -> SamplingParams:
    own = {name: value for name, value in entry.items() if name in SAMPLING_FIELDS}
    try:
        if isinstance(bias := own.get("logit_bias"), dict):
            own["logit_bias"] = {int(token) if token.isdecimal() else token: value for token, value in bias.items()}
        return sampling_params({**sampling, **own})
    except InvalidRequest as error:
        raise at_line(where, error.message) from None
    except ValueError as error:  # Python reads no integer of thousands of digits
        raise at_line(where, f"logit_bias: {error}") from None


def sampling_params(fields: Mapping[str, Any]) -> SamplingParams:
    """Make them of what JSON or the command line says; "structured" is an object. Raises InvalidRequest."""
    structured = fields.get("structured")
    if not isinstance(structured, Mapping):
        return SamplingParams(**fields)
    if unknown := [name for name in structured if name not in STRUCTURED_FIELDS]:
        raise InvalidRequest(f"structured has no {unknown[0]!r}; there is {', '.join(STRUCTURED_FIELDS)}")
    return SamplingParams(**{**fields, "structured": StructuredOutput(**structured)})


def _kind(value: Any) -> str:
    """Name a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
