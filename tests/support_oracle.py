"""Reference for whole runs: greedy `generate()` of transformers, and cases of all factors.

Case           one combination of factors: architecture, block size, chunk, prefix hit, preemption, client ...
cases(count)   seeded cases with pairwise coverage: every two values of every two factors occur together in a case
bridged_cases  the same for one architecture that transformers' modules compute
Oracle         one model variant and the greedy continuations of prompts, which are computed once
"""

import itertools
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from chairlift.engine.scheduler.batching_policy import NAMES
from chairlift.engine.scheduler.waiting_queue.base import POLICIES
from support_bridged_models import BRIDGED, bridged_model, save_bridged
from support_models import EOS_TOKEN_IDS, VOCAB_SIZE, save_tiny, tiny_hf_model

SLIDING = {
    "mistral",
    "qwen2-sliding",
    "gemma3",
    "gemma4",
    "gemma4_dense",
    "gemma4_moe",
    *(kind for kind, spec in BRIDGED.items() if spec.window),
}
ALL_SLIDING = {"mistral", *(kind for kind, spec in BRIDGED.items() if spec.slides_everywhere)}
"""Kinds with a window in some layers, and in all of them."""

ARCHITECTURES = ("llama", "llama-llama3", "llama-yarn", "mistral", "qwen2", "qwen2-sliding", "qwen3", "gemma3")
MAX_OUTPUT = 24
BASE_PREFIX = 120

FACTORS: dict[str, tuple[Any, ...]] = {
    "architecture": ARCHITECTURES,
    "arrival": ("at once", "staggered", "shuffled"),
    "requests": (1, 2, 5, 12, 32),
    "block_size": (1, 16, 32, 37),
    "chunk": (1, 7, 64, None),
    "hit": ("none", "partial block", "full", "exact prompt", "in flight"),
    "preemption": (False, True),
    "aborts": (False, True),
    "crossed": (False, True),
    "overlap": (False, True),
    "engine_mode": ("inline", "process"),
    "scheduling_policy": tuple(sorted(POLICIES)),
    "batching_policy": NAMES,
    "backend": ("torch", "reference"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of factors; see FACTORS."""

    architecture: str
    arrival: str
    requests: int
    block_size: int
    chunk: int | None
    hit: str
    preemption: bool
    aborts: bool
    crossed: bool
    overlap: bool
    engine_mode: str
    scheduling_policy: str
    batching_policy: str
    backend: str
    seed: int
    model_impl: str = "auto"

    @property
    def variant(self) -> tuple[str, int | None]:
        """The model: an architecture, and its window if it has one."""
        return self.architecture, (20 if self.crossed else 400) if self.architecture in SLIDING else None


def _possible(point: dict[str, Any]) -> bool:
    """Whether a case can have these values together.

    An architecture without a window cannot cross one, for example.
    """
    if point["crossed"] and point["architecture"] not in SLIDING:
        return False
    if point["requests"] == 1 and (point["preemption"] or point["aborts"] or point["hit"] == "in flight"):
        return False
    if point["preemption"] and point["batching_policy"] in {"fifo", "static", "decode_first"}:
        return False  # too few sequences run together to use up the blocks
    shares_prefix = point["hit"] != "none"
    if point["preemption"] and shares_prefix and (point["crossed"] or point["architecture"] in ALL_SLIDING):
        return (
            False  # long prompts free more blocks behind their window than they need; shared ones wait for free blocks
        )
    is_rarely_short = point["requests"] == 2 or (point["hit"] == "exact prompt" and point["chunk"] == 1)
    if point["preemption"] and point["block_size"] > MAX_OUTPUT and is_rarely_short:
        return False  # an output needs only one more block, perhaps not at the same time as the other sequence
    return not (point["block_size"] == 1 and point["hit"] == "partial block")


def _pairs(point: dict[str, Any]) -> set[tuple[Any, ...]]:
    return {(a, point[a], b, point[b]) for a, b in itertools.combinations(FACTORS, 2)}


def _random_point(rng: random.Random, factors: Mapping[str, tuple[Any, ...]] = FACTORS) -> dict[str, Any]:
    while True:
        point = {name: rng.choice(values) for name, values in factors.items()}
        if _possible(point) and (factors is FACTORS or not _is_too_short_to_preempt(point)):
            return point


def _is_too_short_to_preempt(point: dict[str, Any]) -> bool:
    """Whether two requests may end before they need one block too many; the cases of FACTORS have no such seed."""
    is_short = point["requests"] == 2 and point["hit"] == "exact prompt" and point["chunk"] == 1
    return point["preemption"] and is_short


@cache
def possible_pairs() -> frozenset[tuple[Any, ...]]:
    """Return every pair of values that occurs in a possible case."""
    rng = random.Random(1)
    return frozenset().union(*(_pairs(_random_point(rng)) for _ in range(2_000)))  # 1,000 would be enough


@cache
def cases(count: int) -> tuple[Case, ...]:
    """Return seeded cases; the first ones cover all pairs greedily, the rest are random."""
    rng, uncovered = random.Random(2026), set(possible_pairs())
    return tuple(Case(**point, seed=seed) for seed, point in enumerate(_points(rng, uncovered, FACTORS, count)))


@cache
def bridged_cases(architecture: str, count: int) -> tuple[Case, ...]:
    """Return seeded cases of one architecture that transformers' modules compute, with pairwise coverage.

    The engine runs inline but in every twentieth case; that a model runs in another process is no matter of its kind.
    """
    factors = {**FACTORS, "architecture": (architecture,), "requests": (1, 2, 5, 12), "engine_mode": ("inline",)}
    rng = random.Random(architecture)
    uncovered = set().union(*(_pairs(_random_point(rng, factors)) for _ in range(2_000)))
    return tuple(
        Case(**{**point, "engine_mode": "process" if seed % 20 == 19 else "inline"}, seed=seed,
             model_impl="transformers")
        for seed, point in enumerate(_points(rng, uncovered, factors, count))
    )  # fmt: skip


def _points(
    rng: random.Random, uncovered: set[tuple[Any, ...]], factors: Mapping[str, tuple[Any, ...]], count: int
) -> Iterator[dict[str, Any]]:
    """Yield points that cover the uncovered pairs greedily, then random ones."""
    for _ in range(count):
        points = [_random_point(rng, factors) for _ in range(60 if uncovered else 1)]
        best_point = max(points, key=lambda point: len(_pairs(point) & uncovered))
        uncovered -= _pairs(best_point)
        yield best_point


def covered_pairs(selected: tuple[Case, ...]) -> set[tuple[Any, ...]]:
    """Return every pair of values that occurs in these cases."""
    names = [spec.name for spec in fields(Case) if spec.name != "seed"]
    return set().union(*(_pairs({name: getattr(case, name) for name in names}) for case in selected))


class Oracle:
    """One model variant in float64, its folder, and the tokens that transformers generates."""

    def __init__(self, architecture: str, window: int | None) -> None:
        changes = {} if window is None else {"sliding_window": window}
        is_bridged = architecture in BRIDGED
        self.model = (bridged_model if is_bridged else tiny_hf_model)(architecture, 0, torch.float64, **changes)
        self._folder = tempfile.TemporaryDirectory(prefix="chairlift-oracle-")
        self.folder = (save_bridged if is_bridged else save_tiny)(architecture, Path(self._folder.name), 0, **changes)
        self._continuations: dict[tuple[tuple[int, ...], bool], list[int]] = {}

    def continuation(self, prompt: tuple[int, ...], *, ignore_eos: bool) -> list[int]:
        """Return the greedy tokens after the prompt: at most MAX_OUTPUT, with the end of sequence."""
        key = prompt, ignore_eos
        if key not in self._continuations:
            eos = {"eos_token_id": None} if ignore_eos else {"eos_token_id": list(EOS_TOKEN_IDS)}
            results = self.model.generate(
                torch.tensor([prompt]), max_new_tokens=MAX_OUTPUT, do_sample=False, pad_token_id=0, **eos
            )
            self._continuations[key] = results[0, len(prompt) :].tolist()
        return self._continuations[key]


@cache
def oracle(architecture: str, window: int | None) -> Oracle:
    """Return the oracle of a model variant, which is made once per test process."""
    torch.set_num_threads(1)
    return Oracle(architecture, window)


def own_prompt(number: int, length: int) -> tuple[int, ...]:
    """Return a prompt whose first token no other number has, so it shares no prefix."""
    rng = random.Random(f"own {number}")
    return (10 + number, *(rng.randrange(8, VOCAB_SIZE) for _ in range(length - 1)))


def shared_prompt(number: int, prefix: int, num_own_tokens: int) -> tuple[int, ...]:
    """Return `prefix` common tokens, then `num_own_tokens` others.

    No other number has the first of the others.
    """
    rng, tail = random.Random("base"), random.Random(f"tail {number}")
    base = [200, *(rng.randrange(8, VOCAB_SIZE) for _ in range(BASE_PREFIX - 1))][:prefix]
    return (
        *base,
        *([10 + number, *(tail.randrange(8, VOCAB_SIZE) for _ in range(num_own_tokens - 1))] if num_own_tokens else []),
    )


def lengths(case: Case) -> Iterator[int]:
    """Yield the prompt lengths of a case, which are mostly short.

    The first prompt is so long that a block leaves the window.
    """
    rng = random.Random(f"lengths {case.seed}")
    yield case.block_size + 26 if case.crossed else rng.randrange(1, 60)
    while True:
        yield rng.choice((rng.randrange(1, 12), rng.randrange(1, 60)))
