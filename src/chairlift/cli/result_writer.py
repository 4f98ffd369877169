"""OrderedWriter: writes one JSON line per request in input order.

The module also checks output files before any work is done.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from chairlift.cli.prompt_items import PromptItem
from chairlift.core.engine_output import TokenLogprob
from chairlift.core.errors import ConfigError
from chairlift.llm.outputs import CompletionOutput, RequestOutput


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


def check_output(path: str) -> None:
    """Raise ConfigError for an output file that cannot be written; the file is not changed."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: permission denied")


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None] | None = None) -> None:
    """Raise ConfigError for an output file that cannot be written or is used twice.

    Args:
        outputs: paths of output files by flag; None for a flag that is not given.
        inputs: the same for input files.
    """
    names: dict[Path, str] = {}
    for name, path in {**(inputs or {}), **outputs}.items():
        if path is None or path == "-" or (name not in outputs and not Path(path).is_file()):
            continue
        if name in outputs:
            check_output(path)
        target = Path(path).resolve()
        is_shared = target.exists() and not target.is_file()  # a pipe, a terminal
        if (other := names.setdefault(target, name)) != name and not is_shared:
            raise ConfigError(f"{other} and {name} are the same file, {path}; name different files")


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the block is done, so that no line is lost or cut.

    A second Ctrl-C interrupts at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_interrupted = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if is_interrupted:
        raise KeyboardInterrupt


class OrderedWriter:
    """Collects lines in any order and writes each as soon as all lines before it are written.

    `close()` also writes the lines after a missing one, in order.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._ready: dict[int, str] = {}
        self._next = 0
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
        self._file.flush()

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        self.written += 1
