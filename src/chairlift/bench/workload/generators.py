"""Generators: workloads by name, drawn from a seed; the same (name, seed, count) is the same work on every Python.

    longtail   short prompts, outputs of 16..512: nineteen in twenty are short, of the bounded Pareto distribution
               B(16, 32, 2) (Crovella, Harchol-Balter, Murta: "Task assignment in a distributed system", SIGMETRICS
               1998), one in twenty runs on to a limit, equally likely 448..512; prompts of 8..24; the mean is 44
    broadtail  the same with more of everything: one output in ten is long, equally likely 256..512, the others are of
               B(16, 64, 1); prompts of 16..64; the mean is 65
    uniform    every request has 16 prompt and 44 output tokens, the means of longtail
    prefix     eight groups in turn; 512 tokens that the group shares and 32 own ones, 32 out
    w1 w2 w3   this project's reference workloads, as drawn by this file: w1 mixed lengths (prompts 16..256, outputs
               16..128), w2 one shared prefix (512 and 32 own tokens, 32 out), w3 long prompts (1,024..2,048, outputs
               64..192)

Only Random.random() is used, which Python promises never to change for a seed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.errors import ConfigError

PREFIX_GROUPS = 8
SHARED_TOKENS, OWN_TOKENS = 512, 32


def below(rng: Random, bound: int) -> int:
    """Draw from 0 .. bound - 1."""
    return int(rng.random() * bound)


def between(rng: Random, low: int, high: int) -> int:
    """Draw from low .. high, both included."""
    return low + below(rng, high - low + 1)


def bounded_pareto(rng: Random, low: int, high: int, alpha: float = 1.0) -> int:
    """Draw from low .. high by the inverse of B(low, high, alpha)'s distribution function."""
    mass = 1 - (low / high) ** alpha  # of the distribution below `high`
    return min(high, int(low / (1 - rng.random() * mass) ** (1 / alpha)))


@dataclass(frozen=True, slots=True)
class _Draw:
    """The random numbers and vocabulary size that a generator draws from."""

    rng: Random
    vocab_size: int

    def ids(self, count: int) -> tuple[int, ...]:
        return tuple(below(self.rng, self.vocab_size) for _ in range(count))

    def item(self, prompt: tuple[int, ...], output_tokens: int) -> WorkloadRequest:
        return WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=output_tokens)


Items = Iterator[WorkloadRequest]


@dataclass(frozen=True, slots=True)
class _Tailed:
    """Lengths whose outputs mix many short ones, B(*short, alpha), with a share of long ones."""

    prompts: tuple[int, int]
    short: tuple[int, int]
    alpha: float
    long: tuple[int, int]
    share: float

    def items(self, draw: _Draw) -> Items:
        while True:
            prompt = draw.ids(between(draw.rng, *self.prompts))
            is_long = draw.rng.random() < self.share
            outputs = between(draw.rng, *self.long) if is_long else bounded_pareto(draw.rng, *self.short, self.alpha)
            yield draw.item(prompt, outputs)


_LONGTAIL = _Tailed(prompts=(8, 24), short=(16, 32), alpha=2.0, long=(448, 512), share=0.05)
_BROADTAIL = _Tailed(prompts=(16, 64), short=(16, 64), alpha=1.0, long=(256, 512), share=0.1)


def _uniform(draw: _Draw) -> Items:
    while True:
        yield draw.item(draw.ids(16), 44)


def _shared(draw: _Draw, groups: int) -> Items:
    prefixes = [draw.ids(SHARED_TOKENS) for _ in range(groups)]
    while True:
        for prefix in prefixes:
            yield draw.item(prefix + draw.ids(OWN_TOKENS), 32)


def _mixed(draw: _Draw, prompts: tuple[int, int], outputs: tuple[int, int]) -> Items:
    while True:
        yield draw.item(draw.ids(between(draw.rng, *prompts)), between(draw.rng, *outputs))


@dataclass(frozen=True, slots=True)
class _Kind:
    count: int
    items: Callable[[_Draw], Items]


_KINDS: Mapping[str, _Kind] = {
    "longtail": _Kind(256, _LONGTAIL.items),
    "broadtail": _Kind(256, _BROADTAIL.items),
    "uniform": _Kind(256, _uniform),
    "prefix": _Kind(64, lambda draw: _shared(draw, PREFIX_GROUPS)),
    "w1": _Kind(32, lambda draw: _mixed(draw, (16, 256), (16, 128))),
    "w2": _Kind(64, lambda draw: _shared(draw, 1)),
    "w3": _Kind(8, lambda draw: _mixed(draw, (1024, 2048), (64, 192))),
}
NAMES = tuple(_KINDS)
DEFAULT_REQUESTS = {name: kind.count for name, kind in _KINDS.items()}


def generate(name: str, *, vocab_size: int, seed: int = 0, count: int | None = None) -> Workload:
    """Make a workload whose requests all arrive at once.

    Args:
        name: one of NAMES.
        vocab_size: token ids are below this; the lengths do not depend on it.
        seed: seed of all random numbers.
        count: number of requests; None for the default. A smaller count gives the first requests of a larger one.

    Raises ConfigError for an unknown name or an invalid count.
    """
    draws = endless(name, vocab_size=vocab_size, seed=seed)
    num_requests = _KINDS[name].count if count is None else count
    if num_requests < 1:
        raise ConfigError(f"requests must be at least 1, got {num_requests}", option="requests")
    return Workload(name=name, seed=seed, items=tuple(next(draws) for _ in range(num_requests)))


def endless(name: str, *, vocab_size: int, seed: int = 0) -> Items:
    """Return an endless iterator over a workload's requests.

    Raises ConfigError for an unknown name.
    """
    kind = _KINDS.get(name)
    if kind is None:
        raise ConfigError(
            f"unknown workload {name!r}; available are {', '.join(NAMES)} and a FILE.jsonl", option="workload"
        )
    return kind.items(_Draw(Random(f"{name} {seed}"), vocab_size))
