"""DraftRecord: what became of the drafts of one sequence, and how likely its next ones are confirmed."""

from dataclasses import dataclass, field

PREDICTION = "prediction"
"""Name of the drafter whose drafts the usage of a request counts."""

TRIAL_DECAY = 0.95
"""Weight of a draft for every newer one of the same sequence and drafter."""

IDLE_DECAY = 0.98
"""Weight of all drafts for every later step: a sequence whose drafts were wrong gets one again at last."""

PRIOR_WEIGHT = 2.0
"""Drafts that the rate of all sequences counts for, beside those of a sequence."""

FIRST_RATE = 0.7
"""Rate that is assumed before a drafter has had any draft."""


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

    def fade(self) -> None:
        """Let a step pass."""
        self.confirmed *= IDLE_DECAY
        self.tried *= IDLE_DECAY

    def mean(self, prior: float) -> float:
        """Return the estimate, with `prior` as that of other sequences."""
        return (self.confirmed + PRIOR_WEIGHT * prior) / (self.tried + PRIOR_WEIGHT)


@dataclass(slots=True)
class DraftRecord:
    """The drafts of one sequence whose steps were committed.

    Attributes:
        confirmed: drafts that were sampled and are part of the output, by the drafter's name.
        rejected: the others, by the drafter's name.
        rates: estimates, by the drafter's name.
    """

    confirmed: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    rates: dict[str, ConfirmationRate] = field(default_factory=dict)

    def add(self, drafter: str, num_drafts: int, num_confirmed: int) -> None:
        """Count the drafts of a row."""
        self.confirmed[drafter] = self.confirmed.get(drafter, 0) + num_confirmed
        self.rejected[drafter] = self.rejected.get(drafter, 0) + num_drafts - num_confirmed
        self.rates.setdefault(drafter, ConfirmationRate()).add(num_drafts, num_confirmed)

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
