"""METHODS, make_drafters: the methods of speculative decoding that users choose, and the drafters of each."""

from collections.abc import Callable

from chairlift.core.errors import ConfigError
from chairlift.engine.config import AUTO_METHOD, DRAFT_MODEL_METHOD, OFF_METHOD, SpeculationConfig
from chairlift.engine.drafters.base import Drafter
from chairlift.engine.drafters.forced_tokens import ForcedTokensDrafter
from chairlift.engine.drafters.prediction import PredictionDrafter
from chairlift.engine.drafters.prompt_lookup import PromptLookupDrafter
from chairlift.engine.drafters.suffix import SuffixDrafter


def _suffix(config: SpeculationConfig) -> tuple[Drafter, ...]:
    """Return the drafters of method "suffix", which share the index of each sequence."""
    prompt_lookup = PromptLookupDrafter(config)
    try:
        suffix = SuffixDrafter(config, prompt_lookup)
    except (MemoryError, ValueError, OverflowError):
        raise ConfigError(
            f"there is no memory for suffix_max_bytes {config.suffix_max_bytes}", option="speculative_config"
        ) from None
    return PredictionDrafter(), suffix, prompt_lookup


METHODS: dict[str, Callable[[SpeculationConfig], tuple[Drafter, ...]]] = {
    AUTO_METHOD: lambda config: (PredictionDrafter(), ForcedTokensDrafter(), PromptLookupDrafter(config)),
    "ngram": lambda config: (PredictionDrafter(), PromptLookupDrafter(config)),
    "suffix": _suffix,
    "prediction": lambda config: (PredictionDrafter(),),
    DRAFT_MODEL_METHOD: lambda config: (PredictionDrafter(),),
    OFF_METHOD: lambda config: (),
}
"""The drafters of each method: the first one that proposes tokens for a sequence is used.

What a request predicts itself comes first in all of them. A draft model's drafter needs a runner: engine_loop.py makes
it.
"""


def make_drafters(config: SpeculationConfig) -> tuple[Drafter, ...]:
    """Make the drafters of config.method, apart from a draft model's. Raises ConfigError for an unknown name."""
    if config.method not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise ConfigError(
            f"unknown method {config.method!r} of speculation; available are {known}", option="speculative_config"
        )
    return METHODS[config.method](config)
