"""DraftRecord: what became of the drafts of one sequence, and how likely its next ones are confirmed."""

from dataclasses import dataclass, field
from typing import NamedTuple

PREDICTION = "prediction"
"""Name of the drafter whose drafts the usage of a request counts."""

TRIAL_DECAY = 0.95
"""Weight of a draft for every newer one of the same sequence and drafter."""

IDLE_DECAY = 0.98
"""Weight of all drafts for every later step: a sequence whose drafts were wrong gets one again at last."""

ENGINE_DECAY = 0.998
"""Weight of a draft for every newer one of the same source, of all sequences."""

ENGINE_IDLE_DECAY = 0.9995
"""Weight of the drafts of all sequences for every later step: a source that was wrong is tried again at last."""

PRIOR_WEIGHT = 2.0
"""Drafts that the rate of all sequences counts for, beside those of a sequence."""

FIRST_RATE = 0.7
"""Rate that is assumed before a source has had any draft."""

FIRST_WEIGHT = 4.0
"""Drafts that FIRST_RATE counts for, beside those of all sequences: a few wrong ones do not end them."""


class DraftSource(NamedTuple):
    """Where drafts come from; those of one source are confirmed about equally often.

    Attributes:
        name: of the drafter.
        grade: see GradesProposals; 0 for a drafter without grades.
    """

    name: str
    grade: int = 0


NO_SOURCE = DraftSource("")


@dataclass(slots=True)
class ConfirmationRate:
    """A running estimate of the chance that a draft is confirmed if those before it are.

    Attributes:
        confirmed: confirmed drafts, older ones with less weight.
        tried: drafts that were confirmed, or were the first wrong one of their row.
    """

    confirmed: float = 0.0
    tried: float = 0.0

    def add(self, num_drafts: int, num_confirmed: int, decay: float = TRIAL_DECAY) -> None:
        """Take the drafts of a row; those behind the first wrong one say nothing."""
        num_tried = num_confirmed + (num_confirmed < num_drafts)
        fading = decay**num_tried
        self.confirmed = self.confirmed * fading + num_confirmed
        self.tried = self.tried * fading + num_tried

    def fade(self, decay: float = IDLE_DECAY) -> None:
        """Let a step pass."""
        self.confirmed *= decay
        self.tried *= decay

    def mean(self, prior: float, weight: float = PRIOR_WEIGHT) -> float:
        """Return the estimate, with `prior` as that of other sequences, which counts for `weight` drafts."""
        return (self.confirmed + weight * prior) / (self.tried + weight)


class EngineRates:
    """The estimates of each source over all sequences of an engine."""

    def __init__(self) -> None:
        self._rates: dict[DraftSource, ConfirmationRate] = {}

    def add(self, source: DraftSource, num_drafts: int, num_confirmed: int) -> None:
        """Take the drafts of a row."""
        self._rates.setdefault(source, ConfirmationRate()).add(num_drafts, num_confirmed, decay=ENGINE_DECAY)

    def pass_step(self) -> None:
        """Let a step pass."""
        for rate in self._rates.values():
            rate.fade(ENGINE_IDLE_DECAY)

    def rate(self, source: DraftSource, record: "DraftRecord | None") -> float:
        """Return the chance that a draft is confirmed if those before it are, for a sequence with this record."""
        of_all = self._rates.get(source)
        prior = FIRST_RATE if of_all is None else of_all.mean(FIRST_RATE, FIRST_WEIGHT)
        own = None if record is None else record.rates.get(source)
        return prior if own is None else own.mean(prior)


@dataclass(slots=True)
class DraftRecord:
    """The drafts of one sequence whose steps were committed.

    Attributes:
        confirmed: drafts that were sampled and are part of the output, by the drafter's name.
        rejected: the others, by the drafter's name.
        rates: estimates, by source.
    """

    confirmed: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    rates: dict[DraftSource, ConfirmationRate] = field(default_factory=dict)

    def add(self, source: DraftSource, num_drafts: int, num_confirmed: int) -> None:
        """Count the drafts of a row."""
        name = source.name
        self.confirmed[name] = self.confirmed.get(name, 0) + num_confirmed
        self.rejected[name] = self.rejected.get(name, 0) + num_drafts - num_confirmed
        self.rates.setdefault(source, ConfirmationRate()).add(num_drafts, num_confirmed)

    def pass_step(self) -> None:
        """Let a step pass, whether the sequence has drafts in it or not."""
        for rate in self.rates.values():
            rate.fade()

    @property
    def num_confirmed(self) -> int:
        """Confirmed drafts of all drafters."""
        return sum(self.confirmed.values())

    @property
    def num_rejected(self) -> int:
        """Rejected drafts of all drafters."""
        return sum(self.rejected.values())
