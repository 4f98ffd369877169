"""unknown_command_message: says which command an unknown one probably means, also a command of other tools."""

import difflib
import os
from collections.abc import Mapping, Sequence

SERVICE_END = "Ctrl-C or SIGTERM ends `chairlift serve`, after its open requests"
DOWNLOAD = "a model is downloaded when a command first names it: `chairlift serve MODEL`"
LOADED = "`chairlift top` shows a server's replicas, and the server's route /v1/models its models"
ADVICE: Mapping[str, str] = {
    "run": "`chairlift chat MODEL` talks with a model, and `chairlift serve MODEL` serves it",
    "start": "`chairlift serve MODEL` serves a model",
    "launch": "`chairlift serve MODEL` serves a model, and `chairlift fleet MODEL` several replicas of it",
    "launch-server": "`chairlift serve MODEL` serves a model",
    "api-server": "`chairlift serve MODEL` serves a model",
    "server": "`chairlift serve MODEL` serves a model",
    "complete": "`chairlift generate MODEL --prompt TEXT` completes a prompt",
    "list": LOADED, "ls": LOADED, "ps": LOADED, "models": LOADED, "status": LOADED,
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
    if similar := difflib.get_close_matches(word.lower(), choices, n=1):
        return f"unknown command {name!r}; did you mean {' '.join([*parents, similar[0]])!r}?"
    if not parents and ("/" in word or word.startswith("chairlift:") or os.path.isdir(word)):
        return f"{word!r} is no command; `chairlift chat {word}` and `chairlift serve {word}` take a model"
    return f"unknown command {name!r}; available are {', '.join(choices)}"
