"""Orders: what one run shall do, as a value that a process of its own can be handed as JSON."""

from pathlib import Path
from typing import Any

import msgspec

from chairlift.bench.workload.generators import NAMES, assign_tenants, generate, with_poisson_arrivals
from chairlift.bench.workload.workload import Workload
from chairlift.bench.workload.workload_trace import read_trace
from chairlift.core.errors import ConfigError

TRACE_SUFFIX = ".jsonl"
VOCAB_SIZE = 2**31 - 1
"""Larger than any; for checks before the model's own is known."""


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload is made.

    Attributes:
        name: one of generators.NAMES, or the path of a trace.
        requests: how many; None is the name's own number, or all of the file.
        seed: of everything drawn.
        rate: requests a second, arriving in a Poisson process; None for all at once, or as the file says.
        tenants: shares of the load by tenant; empty for nobody's, or as the file says.
    """

    name: str
    requests: int | None = None
    seed: int = 0
    rate: float | None = None
    tenants: dict[str, float] = {}

    @property
    def is_trace(self) -> bool:
        """Whether it comes from a file."""
        return self.name not in NAMES and self.name.endswith(TRACE_SUFFIX)

    def make(self, vocab_size: int) -> Workload:
        """Make it; the same spec and vocabulary make the same one.

        Raises ConfigError for what cannot be, InvalidRequest for a trace that cannot be read.
        """
        if self.is_trace:
            workload = read_trace(self.name, vocab_size=vocab_size, seed=self.seed, count=self.requests)
        else:
            workload = generate(self.name, vocab_size=vocab_size, seed=self.seed, count=self.requests)
        if self.rate is not None:
            workload = with_poisson_arrivals(workload, self.rate)
        return assign_tenants(workload, self.tenants) if self.tenants else workload

    def check(self) -> Workload:
        """Raise what `make` would, but for token ids that only the model's vocabulary can refuse.

        Returns it with token ids that may be beyond that.
        """
        return self.make(VOCAB_SIZE)

    def shown_name(self) -> str:
        """Name it without the folders of this machine."""
        return Path(self.name).name if self.is_trace else self.name

    def shown(self) -> dict[str, Any]:
        """Return what a report says of it before it is made."""
        return {"name": self.shown_name(), "seed": self.seed, "rate": self.rate, "tenants": self.tenants}


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        model: a folder, a hub id, or a name of llm/model_names.py; None is the embedded demo model.
        options: of the engine (llm/options.py); a peer looks at those that mean something to it.
        workload: what is asked.
        settings: of the peer that runs it, by name (peers/registry.py).
    """

    model: str | None
    options: dict[str, Any]
    workload: WorkloadSpec
    settings: dict[str, str] = {}

    def encode(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(text: bytes) -> "RunSpec":
        """Read what `encode` wrote. Raises ConfigError."""
        try:
            return msgspec.json.decode(text, type=RunSpec)
        except msgspec.DecodeError as error:
            raise ConfigError(f"the order cannot be read: {error}") from None
