"""OrderedWriter, LineFile: write one JSON line per request in input order, each line whole or not at all."""

import json
import os
from types import TracebackType
from typing import Any, Protocol, Self

from chairlift.cli.prompt_items import PromptItem
from chairlift.core.engine_output import TokenLogprob
from chairlift.core.file_writes import naming_file
from chairlift.llm.outputs import CompletionOutput, RequestOutput
from chairlift.web.batch_files.output_journal import append_whole


def as_json(item: PromptItem, result: RequestOutput) -> str:
    """Return a result as one line of JSON without a newline.

    Half of a surrogate pair in the input is written as an escape.
    """
    error, (field, value), first = result.error, item.input, result.outputs[0]
    entry: dict[str, Any] = {
        "id": item.item_id,
        field: value,
        **_choice_object(first),
        "usage": {
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "cached_tokens": result.usage.cached_tokens,
        },
        "seed": first.seed,
        "error": None if error is None else {"code": error.code, "message": error.message},
    }
    if len(result.outputs) > 1:
        entry["choices"] = [_choice_object(choice) for choice in result.outputs]
    if result.prompt_token_logprobs is not None:
        entries = result.prompt_token_logprobs
        entry["prompt_logprobs"] = [None if each is None else _logprob_object(each) for each in entries]
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _choice_object(choice: CompletionOutput) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if choice.token_logprobs is not None:
        entry["logprobs"] = [_logprob_object(each) for each in choice.token_logprobs]
    return entry


def _logprob_object(entry: TokenLogprob) -> dict[str, Any]:
    return {"token_id": entry.token_id, "logprob": entry.logprob, "top": entry.top}


class LineOutput(Protocol):
    """Takes lines: a text stream, or a LineFile."""

    def write(self, text: str, /) -> object:
        """Write a line with its newline."""
        ...

    def flush(self) -> None:
        """Pass on what is written."""
        ...

    def isatty(self) -> bool:
        """Return whether a person reads it."""
        ...


class LineFile:
    """A new file of lines; a line that cannot be written whole is not in it."""

    def __init__(self, path: str) -> None:
        """Create or truncate the file. Raises FileNotWritten."""
        self._path = path
        with naming_file(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write(self, text: str, /) -> None:
        """Write a line. Raises FileNotWritten; the file is as before then."""
        with naming_file(self._path):
            append_whole(self._descriptor, text.encode())

    def flush(self) -> None:
        """Do nothing: each line is written at once."""

    def isatty(self) -> bool:
        """Return whether the file is a terminal."""
        return os.isatty(self._descriptor)


class OrderedWriter:
    """Collects lines in any order and writes each as soon as all lines before it are written.

    `close()` also writes the lines after a missing one, in order. Nothing is written after an error.
    """

    def __init__(self, file: LineOutput) -> None:
        self._file = file
        self._ready: dict[int, str] = {}
        self._next = 0
        self._has_failed = False
        self.written = 0

    def put(self, index: int, line: str) -> None:
        """Add the line of the index-th item."""
        self._ready[index] = line
        while self._next in self._ready:
            self._write(self._ready.pop(self._next))
            self._next += 1

    def close(self) -> None:
        """Write the remaining lines and flush."""
        for index in sorted(self._ready):
            self._write(self._ready.pop(index))
        if not self._has_failed:
            self._file.flush()

    def _write(self, line: str) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        self._file.write(line + "\n")
        self._file.flush()
        self._has_failed = False
        self.written += 1
