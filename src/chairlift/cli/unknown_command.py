"""unknown_command_message: says which command an unknown one probably means, also a command of other tools."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

WORD_COMMANDS = ("help", "version")
"""Commands that the parser does not have: each stands for an option."""

MIN_SIMILARITY = 0.65
"""Least ratio of difflib for a suggestion: `scale` has it with `autoscaler`, `health` has less with `chat`."""

MIN_PART_CHARS = 3
"""Least characters of a word that is suggested because it is a part of a command: `dump` of `debug-dump`."""

SERVICE_END = "Ctrl-C or SIGTERM ends `chairlift serve`, after its open requests"
DOWNLOAD = "a model is downloaded when a command first names it: `chairlift serve MODEL`"
LOADED = "`chairlift top` shows a server's replicas, and the server's route /v1/models its models"
CHECKED = "`chairlift top` shows a running server, and `chairlift doctor --url URL` checks it"
ADVICE: Mapping[str, str] = {
    "run": "`chairlift chat MODEL` talks with a model, and `chairlift serve MODEL` serves it",
    "start": "`chairlift serve MODEL` serves a model",
    "launch": "`chairlift serve MODEL` serves a model, and `chairlift fleet MODEL` several replicas of it",
    "launch-server": "`chairlift serve MODEL` serves a model",
    "api-server": "`chairlift serve MODEL` serves a model",
    "server": "`chairlift serve MODEL` serves a model",
    "complete": "`chairlift generate MODEL --prompt TEXT` completes a prompt",
    "list": LOADED, "ls": LOADED, "ps": LOADED, "models": LOADED, "status": LOADED,
    "health": CHECKED, "monitor": CHECKED, "metrics": CHECKED,
    "tokenize": "a server's route /tokenize returns the tokens of a text",
    "logs": "a server logs to standard error, and with --log-file to a file",
    "pull": DOWNLOAD, "download": DOWNLOAD, "get": DOWNLOAD,
    "stop": SERVICE_END, "kill": SERVICE_END, "down": SERVICE_END,
    "show": "`chairlift config show` shows the settings, and `chairlift plan MODEL` what a model needs",
    "info": "`chairlift plan MODEL` shows what a model needs, and `chairlift doctor` what this machine has",
    "env": "`chairlift doctor` shows what this machine has",
    "collect-env": "`chairlift doctor` shows what this machine has",
    "create": "a model is a Hugging Face folder or id: `chairlift serve MODEL`",
    "rm": "models are files of the Hugging Face cache: `hf cache` removes them",
    "benchmark": "`chairlift bench` measures the engine or a server",
    "bench latency": "`chairlift bench offline` reports latencies and throughput",
    "bench throughput": "`chairlift bench offline` reports latencies and throughput",
    "bench online": "`chairlift bench serve` measures a running server",
}  # fmt: skip
"""Commands of Ollama, vLLM, SGLang, transformers and docker, and what takes their place."""


def unknown_command_message(parents: Sequence[str], word: str, choices: Sequence[str]) -> str:
    """Return the sentence about a word that names no command.

    Args:
        parents: the commands before the word: bench.
        word: the word.
        choices: the commands that could be in its place.
    """
    name = " ".join([*parents, word])
    if advice := ADVICE.get(name.replace("_", "-")):
        return f"there is no command {name!r}; {advice}"
    if similar := _similar(word.lower(), choices if parents else [*choices, *WORD_COMMANDS]):
        return f"unknown command {name!r}; did you mean {' '.join([*parents, similar])!r}?"
    if not parents and ("/" in word or word.startswith("chairlift:") or (Path(word) / "config.json").is_file()):
        return f"{word!r} is no command; `chairlift chat {word}` and `chairlift serve {word}` take a model"
    return f"unknown command {name!r}; available are {', '.join(choices)}"


def _similar(word: str, commands: Sequence[str]) -> str:
    """Return the command that a mistyped word, or a part of a command, means; "" if none is near."""
    if near := difflib.get_close_matches(word, commands, n=1, cutoff=MIN_SIMILARITY):
        return near[0]
    parts = [name for name in commands if len(word) >= MIN_PART_CHARS and word in name]
    return parts[0] if len(parts) == 1 else ""
