"""redacted_model, shown_command, shown_options: model, command and options without the machine's paths."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.llm.builtin_models import DEMO


def redacted_model(model: str | None) -> str:
    """Return a model's name without the folders of this machine: a hub id, or the last part of a path."""
    if model is None:
        return DEMO
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def shown_command(arguments: Sequence[str]) -> str:
    """Return a command line with only the last part of each path, to hide this machine's folders."""
    return shlex.join(_shown_word(word) for word in arguments)


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without the folders of this machine."""
    return {name: _shown_word(value) if isinstance(value, str) else value for name, value in options.items()}


def _shown_word(word: str) -> str:
    flag, equals, value = word.partition("=")
    if equals and (flag.startswith("--") or value.startswith(("/", "~"))):  # also NAME.SETTING=VALUE
        return f"{flag}={_shown_word(value)}"
    return Path(word).name or word if word.startswith(("/", "~")) or Path(word).parent.is_dir() else word
