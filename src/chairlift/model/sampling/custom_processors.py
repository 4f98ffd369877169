"""Logits processors of a caller: named when the engine is made, chosen by a request, confined to its row.

A factory ("package.module:name") is called once for each ride of a request, with the request's arguments, and returns
what transformers calls a LogitsProcessor: (input_ids int64 [1, n], scores [1, V]) -> scores [1, V]. input_ids are
prompt and output; they must not be changed. A request that is preempted begins again with a new one, so what a
processor remembers must follow from input_ids.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import ConfigError, SamplingFailed

Processor = Callable[[Tensor, Tensor], Tensor]
Factories = Mapping[str, Callable[..., Processor]]


@dataclass(frozen=True, slots=True)
class NamedProcessor:
    """One processor of one request."""

    name: str
    process: Processor

    def apply(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the moved scores. Raises SamplingFailed for what is no score of each token, or what it raises."""
        moved = self.process(input_ids, scores)
        if not isinstance(moved, Tensor) or moved.shape != scores.shape:
            got = list(moved.shape) if isinstance(moved, Tensor) else type(moved).__name__
            raise SamplingFailed(f"logits processor {self.name!r} returned {got}, not {list(scores.shape)}")
        if bool((moved.isnan() | (moved == torch.inf)).any()):
            raise SamplingFailed(f"logits processor {self.name!r} returned NaN or infinite scores")
        if bool(((moved == -torch.inf).all(-1) & ~(scores == -torch.inf).all(-1)).any()):
            raise SamplingFailed(f"logits processor {self.name!r} bans every token")
        return moved.to(scores)


def import_factories(named: Mapping[str, str]) -> Factories:
    """Import each "package.module:name". Raises ConfigError for one that is not there or cannot be called."""
    found: dict[str, Callable[..., Processor]] = {}
    for name, where in named.items():
        module_name, _, attribute = where.partition(":")
        try:
            factory: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                factory = getattr(factory, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"no logits processor {name!r} at {where!r}: {error}", option="logits_processors"
            ) from error
        if not callable(factory):
            raise ConfigError(f"logits processor {name!r} at {where!r} cannot be called", option="logits_processors")
        found[name] = factory
    return found


def build_processors(chosen: Sequence[tuple[str, str]], factories: Factories) -> tuple[NamedProcessor, ...]:
    """Make those that a request chose, (name, arguments as JSON) each. Raises SamplingFailed for an unknown name."""
    made = []
    for name, arguments in chosen:
        if name not in factories:
            raise SamplingFailed(f"there is no logits processor {name!r}")
        made.append(NamedProcessor(name, factories[name](**json.loads(arguments))))
    return tuple(made)
