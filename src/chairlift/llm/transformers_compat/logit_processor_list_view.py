"""LogitProcessorListView: the logit processors of a manager, as transformers shows them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from chairlift.core.sampling_params import NEUTRAL_VALUES
from chairlift.llm.transformers_compat.settings import ManagerSettings

PENALTIES = ("presence_penalty", "frequency_penalty", "logit_bias", "bad_words_ids", "min_tokens")
"""Parameters that change logits and have no neutral value of their own in NEUTRAL_VALUES."""


class HasSettings(Protocol):
    """What holds the settings that apply to the next request."""

    settings: ManagerSettings


class LogitProcessorListView:
    """The sampling parameters of a manager under the name of transformers' list of processors.

    Shows which parameters of requests without their own change the logits, and can drop them.
    """

    def __init__(self, holder: HasSettings) -> None:
        self._holder = holder

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the parameters; a temperature of 0 is not one: it only chooses greedily."""
        for name, value in self._holder.settings.sampling.items():
            is_neutral = value == NEUTRAL_VALUES.get(name) or (name == "temperature" and value == 0)
            if (name in NEUTRAL_VALUES or name in PENALTIES) and not is_neutral:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Drop these parameters for later requests; greedy requests stay greedy."""
        settings, dropped = self._holder.settings, set(self)
        kept = {name: value for name, value in settings.sampling.items() if name not in dropped}
        self._holder.settings = replace(settings, sampling=kept)
