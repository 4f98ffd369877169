"""DraftRecord: what became of the drafts of one sequence."""

from dataclasses import dataclass, field

PREDICTION = "prediction"
"""Name of the drafter whose drafts the usage of a request counts."""


@dataclass(slots=True)
class DraftRecord:
    """The drafts of one sequence whose steps were committed.

    Attributes:
        confirmed: drafts that were sampled and are part of the output, by the drafter's name.
        rejected: the others, by the drafter's name.
    """

    confirmed: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)

    def add(self, drafter: str, num_drafts: int, num_confirmed: int) -> None:
        """Count the drafts of a row."""
        self.confirmed[drafter] = self.confirmed.get(drafter, 0) + num_confirmed
        self.rejected[drafter] = self.rejected.get(drafter, 0) + num_drafts - num_confirmed

    @property
    def num_confirmed(self) -> int:
        """Confirmed drafts of all drafters."""
        return sum(self.confirmed.values())

    @property
    def num_rejected(self) -> int:
        """Rejected drafts of all drafters."""
        return sum(self.rejected.values())
