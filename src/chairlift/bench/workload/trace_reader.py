"""read_trace: reads a workload from JSONL, one request per line, and checks it before any model is loaded.

    {"at": 0.5, "prompt": [5, 6, 7], "output_tokens": 20, "tenant": "a", "priority": 1, "timeout": 30}
    {"at": 0.7, "prompt_tokens": 300, "output_tokens": 20}

`prompt_tokens` stands for that many random token ids from the seed. Defaults are time 0, no tenant, priority 0 and no
timeout. Lines need not be in order of `at`; lines with the same time keep their order.
"""

import sys
from pathlib import Path
from random import Random
from typing import Any

from chairlift.bench.workload.generators import below
from chairlift.bench.workload.json_lines import read_objects
from chairlift.bench.workload.workload import MAX_SECONDS, Workload, WorkloadRequest
from chairlift.core.errors import InvalidRequest
from chairlift.core.numeric_limits import MAX_PRIORITY
from chairlift.core.structured_output import STRUCTURED_FIELDS, StructuredOutput
from chairlift.core.validation import format_value

FIELDS = ("at", "prompt", "prompt_tokens", "output_tokens", "tenant", "priority", "timeout", "structured")
MAX_TOKENS = 10_000_000
MAX_DRAWN_TOKENS = 2**21
"""Largest `prompt_tokens` of a line: twice the longest context of any model."""


def read_trace(path: str | Path, *, vocab_size: int, seed: int = 0, count: int | None = None) -> Workload:
    """Read a workload.

    Args:
        path: the trace file.
        vocab_size: token ids must be below this.
        seed: seed of the token ids of prompts for which the file has only the length.
        count: number of requests to keep, the first ones by time; None for all.

    Raises InvalidRequest naming file and line, also when the file cannot be read or has no requests.
    """
    path = Path(path)
    rng = Random(f"trace {seed}")
    items = []
    for where, entry in read_objects(path, "an object with prompt or prompt_tokens, and output_tokens"):
        for name in entry:
            if name not in FIELDS:
                raise InvalidRequest(f"{where}: unknown field {name!r}; available are {', '.join(FIELDS)}")
        items.append(_item(entry, where, vocab_size, rng))
    if not items:
        raise InvalidRequest(f"{path} has no requests")
    if count is not None and count < 1:
        raise InvalidRequest(f"requests must be at least 1, got {count}")
    items.sort(key=lambda item: item.at)
    return Workload(name=path.name, seed=seed, items=tuple(items[:count]))


def _item(entry: dict[str, Any], where: str, vocab_size: int, rng: Random) -> WorkloadRequest:
    tenant, timeout = entry.get("tenant", ""), entry.get("timeout")
    if not isinstance(tenant, str):
        raise InvalidRequest(f"{where}: tenant must be text, got {tenant!r}")
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise InvalidRequest(f"{where}: timeout must be a positive number of seconds, got {_shown(timeout)}")
    at = entry.get("at", 0.0)
    if not (_is_number(at) and 0 <= at <= MAX_SECONDS):
        raise InvalidRequest(f"{where}: at must be seconds after the start, from 0 to {MAX_SECONDS}, got {_shown(at)}")
    if "output_tokens" not in entry:
        raise InvalidRequest(f"{where}: needs output_tokens")
    return WorkloadRequest(
        at=float(at), prompt_token_ids=_prompt(entry, where, vocab_size, rng),
        output_tokens=_whole(entry, "output_tokens", where, 1, MAX_TOKENS), tenant=tenant,
        priority=_whole(entry, "priority", where, -MAX_PRIORITY, MAX_PRIORITY), timeout=timeout,
        structured=_structured(entry, where),
    )  # fmt: skip


def _structured(entry: dict[str, Any], where: str) -> StructuredOutput | None:
    fields = entry.get("structured")
    if fields is None:
        return None
    if not isinstance(fields, dict) or not set(fields) <= set(STRUCTURED_FIELDS):
        raise InvalidRequest(f"{where}: structured must be an object with one of {', '.join(STRUCTURED_FIELDS)}")
    try:
        return StructuredOutput(**fields)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.message}") from None


def _prompt(entry: dict[str, Any], where: str, vocab_size: int, rng: Random) -> tuple[int, ...]:
    if ("prompt" in entry) == ("prompt_tokens" in entry):
        raise InvalidRequest(f'{where}: needs either "prompt" or "prompt_tokens"')
    if "prompt_tokens" in entry:
        return tuple(below(rng, vocab_size) for _ in range(_whole(entry, "prompt_tokens", where, 1, MAX_DRAWN_TOKENS)))
    prompt = entry["prompt"]
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise InvalidRequest(f"{where}: prompt must be a list of token ids with at least one entry")
    for token in prompt:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"{where}: token id {token} is outside the vocabulary of {vocab_size}")
    return tuple(prompt)


def _whole(entry: dict[str, Any], name: str, where: str, low: int, high: int) -> int:
    value = entry.get(name, 0)
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequest(f"{where}: {name} must be an integer between {low} and {high}, got {_shown(value)}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _shown(value: object) -> str:
    return format_value(value) if isinstance(value, int) else repr(value)
