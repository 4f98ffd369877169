"""PromptItem: one prompt of `generate`, validated before a model is loaded."""

import difflib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling_params import MODEL_DEFAULTS, SAMPLING_FIELDS, SamplingParams
from chairlift.core.structured_output import STRUCTURED_FIELDS, StructuredOutput
from chairlift.text.chat_template import checked_tools

STDIN = "-"
OWN_FIELDS = ("id", "prompt", "messages", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptItem:
    """One prompt.

    Attributes:
        item_id: "id" of the line, else its line number; the result repeats it.
        input: "prompt" or "messages", and its value as it was given.
        params: sampling parameters of the line, else of the command line.
        tools: tools that the model may call, as they were given; None without tools.
        location: "prompts.jsonl line 17" for error messages; "" for --prompt.
    """

    item_id: str | int
    input: tuple[str, Any]
    params: SamplingParams = field(default_factory=SamplingParams)
    tools: list[dict[str, Any]] | None = None
    location: str = ""


def at_line(location: str, message: str) -> InvalidRequest:
    """Return an error whose message begins with the location."""
    return InvalidRequest(f"{location}: {message}" if location else message)


def read_prompt(prompt: str, sampling: Mapping[str, Any], *, chat: bool) -> PromptItem:
    """Return the item of --prompt; "-" reads standard input without its last newline.

    Raises InvalidRequest.
    """
    if prompt == STDIN:
        prompt = _read_stdin()
        if not prompt:
            raise InvalidRequest("the prompt is empty: standard input has no text; write to it, or give --prompt TEXT")
    if not prompt:
        raise InvalidRequest("the prompt is empty; --prompt needs text")
    return PromptItem(
        item_id=0, input=_chat_input(prompt) if chat else ("prompt", prompt), params=sampling_params(sampling)
    )


def read_prompts(
    path: str, sampling: Mapping[str, Any], *, chat: bool, allow_token_ids: bool = False
) -> list[PromptItem]:  # fmt: skip
    """Read a JSONL file of prompts; "-" is standard input. Empty lines are skipped.

    A line is an object with "prompt" (text or token ids) or "messages", to which "tools" may be added. It may have "id"
    and fields of SamplingParams.

    Args:
        path: path of the file.
        sampling: sampling settings of the command line, which those of a line override.
        chat: turn text prompts into messages.
        allow_token_ids: with `chat`, accept prompts of token ids, which stay as they are.

    Raises:
        InvalidRequest: a line is not valid, and the message names file and line; or the file has no prompts.
    """
    sampling_params(sampling)
    items: list[PromptItem] = []
    id_lines: dict[str | int, str] = {}
    source = "standard input" if path == STDIN else path
    with _open_input(path) as file:
        for number, line in enumerate(_decode_lines(file, source), start=1):
            location = f"{source} line {number}"
            if not line.strip():
                continue
            item = _parse_item(line, number, location, sampling, chat=chat, allow_token_ids=allow_token_ids)
            if item.item_id in id_lines:
                raise at_line(location, f"id {item.item_id!r} is already in {id_lines[item.item_id]}")
            id_lines[item.item_id] = f"line {number}"
            items.append(item)
    if not items:
        raise InvalidRequest(f"{source} has no prompts; each line needs one")
    return items


def stdin_has_input() -> bool:
    """Return whether standard input is a pipe, a socket or a file; not a terminal, /dev/null or closed."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_stdin() -> str:
    """Return the text of standard input without its last newline, in whatever locale. Raises InvalidRequest."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"standard input is not UTF-8: {error.reason} at byte {error.start}; convert it, as with iconv"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"cannot read standard input: {error.strerror or error}") from None
    return text.removesuffix("\n").removesuffix("\r")


def _chat_input(prompt: str) -> tuple[str, Any]:
    return "messages", [{"role": "user", "content": prompt}]


@contextmanager
def _open_input(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except OSError as error:
            raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None
        yield file


def _decode_lines(file: BinaryIO, source: str) -> Iterator[str]:
    """Yield the lines, decoded one by one, so that an error names its line."""
    try:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise at_line(f"{source} line {number}", f"is not UTF-8: {error.reason}") from None
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror or error}") from None


def _parse_item(
    line: str, number: int, location: str, sampling: Mapping[str, Any], *, chat: bool, allow_token_ids: bool
) -> PromptItem:  # fmt: skip
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise at_line(location, f"is not JSON: {error.msg} (column {error.colno})") from None
    except (RecursionError, ValueError) as error:
        raise at_line(location, f"is not valid JSON: {error}") from None
    if not isinstance(entry, dict):
        raise at_line(location, f'must be an object such as {{"prompt": "..."}}, got {_json_type(entry)}')
    for name in entry:
        if name not in OWN_FIELDS + SAMPLING_FIELDS:
            _reject_field(name, location)
    name = entry.get("id", number)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise at_line(location, f"id must be a string or an integer, got {_json_type(name)}")
    prompt_input = _parse_input(entry, location, chat=chat, allow_token_ids=allow_token_ids)
    tools = _tools(entry.get("tools"), location, has_messages=prompt_input[0] == "messages")
    params = _params(entry, location, sampling)
    return PromptItem(item_id=name, input=prompt_input, params=params, tools=tools, location=location)


def _reject_field(name: str, location: str) -> NoReturn:
    similar = difflib.get_close_matches(name, OWN_FIELDS + SAMPLING_FIELDS, n=1)
    fields = ", ".join(OWN_FIELDS + SAMPLING_FIELDS)
    hint = f"did you mean {similar[0]!r}?" if similar else f"available are {fields}"
    raise at_line(location, f"unknown field {name!r}; {hint}")


def _tools(tools: Any, location: str, *, has_messages: bool) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not has_messages:
        raise at_line(location, "tools need messages, or --chat, which turns a prompt into a message")
    try:
        return checked_tools(tools)
    except InvalidRequest as error:
        raise at_line(location, error.message) from None


def _parse_input(entry: Mapping[str, Any], location: str, *, chat: bool, allow_token_ids: bool) -> tuple[str, Any]:
    if ("prompt" in entry) == ("messages" in entry):
        raise at_line(location, 'needs either "prompt" or "messages"')
    if "messages" in entry:
        messages = entry["messages"]
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            raise at_line(location, "messages must be a list with at least one object")
        return "messages", messages
    prompt = entry["prompt"]
    if isinstance(prompt, str) and prompt:
        return _chat_input(prompt) if chat else ("prompt", prompt)
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise at_line(location, "prompt must be text or a list of token ids, and must not be empty")
    if chat and not allow_token_ids:
        raise at_line(location, "--chat needs a prompt of text or messages, got token ids")
    return "prompt", prompt


def _params(entry: Mapping[str, Any], location: str, sampling: Mapping[str, Any]) -> SamplingParams:
    own = {name: value for name, value in entry.items() if name in SAMPLING_FIELDS}
    try:
        if isinstance(bias := own.get("logit_bias"), dict):
            own["logit_bias"] = {int(token) if token.isdecimal() else token: value for token, value in bias.items()}
        return sampling_params({**sampling, **own})
    except InvalidRequest as error:
        raise at_line(location, error.message) from None
    except ValueError as error:  # Python parses no integer of thousands of digits
        raise at_line(location, f"logit_bias: {error}") from None


def sampling_params(fields: Mapping[str, Any]) -> SamplingParams:
    """Return SamplingParams from fields, of which "structured" is an object.

    Raises InvalidRequest.
    """
    structured = fields.get("structured")
    if not isinstance(structured, Mapping):
        return SamplingParams(**{**MODEL_DEFAULTS, **fields})
    if unknown := [name for name in structured if name not in STRUCTURED_FIELDS]:
        raise InvalidRequest(f"structured has no field {unknown[0]!r}; available are {', '.join(STRUCTURED_FIELDS)}")
    return SamplingParams(**{**MODEL_DEFAULTS, **fields, "structured": StructuredOutput(**structured)})


def _json_type(value: Any) -> str:
    """Return the name of a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
