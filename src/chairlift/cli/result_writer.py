"""Results: one JSON object a request, written in the order of the input, and nothing lost when it ends early."""

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from chairlift.cli.prompt_file import PromptItem
from chairlift.core.errors import ConfigError
from chairlift.core.request import TokenLogprob
from chairlift.llm.outputs import CompletionOutput, RequestOutput


def as_json(job: PromptItem, result: RequestOutput) -> str:
    """Return one line of JSON, without its newline; half a surrogate pair in the input stays the escape it was."""
    error, (kind, asked), first = result.error, job.asked, result.outputs[0]
    entry: dict[str, Any] = {
        "id": job.name,
        kind: asked,
        **_of_choice(first),
        "usage": {
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "cached_tokens": result.usage.cached_tokens,
        },
        "seed": first.seed,
        "error": None if error is None else {"code": error.code, "message": error.message},
    }
    if len(result.outputs) > 1:
        entry["choices"] = [_of_choice(choice) for choice in result.outputs]
    if result.prompt_logprobs is not None:
        entry["prompt_logprobs"] = [None if each is None else _of_token(each) for each in result.prompt_logprobs]
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _of_choice(choice: CompletionOutput) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if choice.logprobs is not None:
        entry["logprobs"] = [_of_token(each) for each in choice.logprobs]
    return entry


def _of_token(entry: TokenLogprob) -> dict[str, Any]:
    return {"token_id": entry.token_id, "logprob": entry.logprob, "top": entry.top}


def check_output(path: str) -> None:
    """Refuse a file that cannot be written, before any work; the file is not touched. Raises ConfigError."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: permission denied")


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None] | None = None) -> None:
    """Refuse outputs that cannot be written, or that are the same file as another one of the command.

    Both map what people call a file (--json) to its path, None where it is not given. Raises ConfigError.
    """
    seen: dict[Path, str] = {}
    for name, path in {**(inputs or {}), **outputs}.items():
        if path is None or path == "-" or (name not in outputs and not Path(path).is_file()):
            continue
        if name in outputs:
            check_output(path)
        place = Path(path).resolve()
        is_shared = place.exists() and not place.is_file()  # a pipe, a terminal
        if (other := seen.setdefault(place, name)) != name and not is_shared:
            raise ConfigError(f"{other} and {name} are the same file: {path}")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, so that no line is lost or halved; a second one does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


class OrderedWriter:
    """Takes results as they finish and writes each as soon as all before it are written.

    `close()` writes what is finished and stands behind a gap, too, still in order.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._ready: dict[int, str] = {}
        self._next = 0
        self.written = 0

    def put(self, index: int, line: str) -> None:
        """Take the result of the index-th job."""
        self._ready[index] = line
        while self._next in self._ready:
            self._write(self._ready.pop(self._next))
            self._next += 1

    def close(self) -> None:
        """Write what is left and flush."""
        for index in sorted(self._ready):
            self._write(self._ready.pop(index))
        self._file.flush()

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        self.written += 1
