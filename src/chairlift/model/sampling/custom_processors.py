"""NamedProcessor: a custom logits processor, configured with the engine, chosen by a request, confined to its row.

A factory ("package.module:name") is called each time a sequence starts running, with the request's arguments, and
returns a LogitsProcessor as in transformers: (input_ids int64 [1, n], scores [1, V]) -> scores [1, V]. input_ids are
prompt and output; a processor must not change them. A preempted sequence starts again with a new processor, so its
state must follow from input_ids.
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
        """Return the processed scores. Raises SamplingFailed for invalid scores, and what the processor raises."""
        processed = self.process(input_ids, scores)
        if not isinstance(processed, Tensor) or processed.shape != scores.shape:
            got = list(processed.shape) if isinstance(processed, Tensor) else type(processed).__name__
            raise SamplingFailed(
                f"logits processor {self.name!r} returned {got}, expected scores of shape {list(scores.shape)}"
            )
        if bool((processed.isnan() | (processed == torch.inf)).any()):
            raise SamplingFailed(f"logits processor {self.name!r} returned NaN or infinite scores")
        if bool(((processed == -torch.inf).all(-1) & ~(scores == -torch.inf).all(-1)).any()):
            raise SamplingFailed(f"logits processor {self.name!r} bans every token")
        return processed.to(scores)


def import_factories(named: Mapping[str, str]) -> Factories:
    """Import each "package.module:name". Raises ConfigError for a name that is missing or cannot be called."""
    factories: dict[str, Callable[..., Processor]] = {}
    for name, path in named.items():
        module_name, _, attribute = path.partition(":")
        try:
            factory: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                factory = getattr(factory, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"no logits processor {name!r} at {path!r}: {error}", option="logits_processor_factories"
            ) from error
        if not callable(factory):
            raise ConfigError(
                f"logits processor {name!r} at {path!r} cannot be called", option="logits_processor_factories"
            )
        factories[name] = factory
    return factories


def build_processors(chosen: Sequence[tuple[str, str]], factories: Factories) -> tuple[NamedProcessor, ...]:
    """Build the processors of a request, (name, arguments as JSON) each. Raises SamplingFailed for an unknown name."""
    processors = []
    for name, arguments in chosen:
        if name not in factories:
            raise SamplingFailed(f"there is no logits processor {name!r}")
        processors.append(NamedProcessor(name, factories[name](**json.loads(arguments))))
    return tuple(processors)
