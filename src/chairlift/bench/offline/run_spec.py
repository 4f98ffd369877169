"""RunSpec: model, options and workload of one run, as JSON for a subprocess."""

from pathlib import Path
from typing import Any

import msgspec

from chairlift.bench.workload.generators import NAMES, generate
from chairlift.bench.workload.poisson_arrivals import with_poisson_arrivals
from chairlift.bench.workload.tenant_assignment import assign_tenants
from chairlift.bench.workload.trace_reader import read_trace
from chairlift.bench.workload.workload import Workload
from chairlift.core.errors import ConfigError
from chairlift.core.numeric_limits import MAX_INT32

TRACE_SUFFIX = ".jsonl"
VOCAB_SIZE = MAX_INT32
"""Larger than any vocabulary, for checks before the model's vocabulary size is known."""


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters from which a workload is made.

    Attributes:
        name: one of generators.NAMES, or the path of a trace.
        requests: number of requests; None for the generator's default, or for all of the trace.
        seed: seed of all random numbers.
        rate: requests per second of a Poisson process; None for all at once, or for the times of the trace.
        tenants: shares of the load by tenant; empty for no tenant, or for those of the trace.
    """

    name: str
    requests: int | None = None
    seed: int = 0
    rate: float | None = None
    tenants: dict[str, float] = {}

    @property
    def is_trace(self) -> bool:
        """Whether the workload is read from a file."""
        return self.name not in NAMES and self.name.endswith(TRACE_SUFFIX)

    def make(self, vocab_size: int) -> Workload:
        """Make the workload, which depends only on this specification and the vocabulary size.

        Raises ConfigError for invalid parameters, InvalidRequest for a trace that cannot be read.
        """
        if self.is_trace:
            workload = read_trace(self.name, vocab_size=vocab_size, seed=self.seed, count=self.requests)
        else:
            workload = generate(self.name, vocab_size=vocab_size, seed=self.seed, count=self.requests)
        if self.rate is not None:
            workload = with_poisson_arrivals(workload, self.rate)
        return assign_tenants(workload, self.tenants) if self.tenants else workload

    def check(self) -> Workload:
        """Check everything that `make` checks, except token ids against the model's vocabulary.

        Returns the workload, whose token ids may exceed the model's vocabulary.
        """
        return self.make(VOCAB_SIZE)

    def shown_name(self) -> str:
        """Return the name without the folders of this machine."""
        return Path(self.name).name if self.is_trace else self.name

    def shown(self) -> dict[str, Any]:
        """Return the fields of a report that describe this specification."""
        return {"name": self.shown_name(), "seed": self.seed, "rate": self.rate, "tenants": self.tenants}


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of one run.

    Attributes:
        model: a folder, a hub id, or a name of llm/builtin_models.py; None is the embedded demo model.
        options: engine options (llm/options.py); a peer reads those that apply to it.
        workload: the parameters of the workload.
        settings: settings of the peer that runs it, by name (peers/registry.py).
    """

    model: str | None
    options: dict[str, Any]
    workload: WorkloadSpec
    settings: dict[str, str] = {}

    def encode(self) -> bytes:
        """Return the specification as JSON."""
        return msgspec.json.encode(self)

    @staticmethod
    def decode(text: bytes) -> "RunSpec":
        """Read what `encode` wrote.

        Raises ConfigError for invalid JSON.
        """
        try:
            return msgspec.json.decode(text, type=RunSpec)
        except msgspec.DecodeError as error:
            raise ConfigError(f"the run specification cannot be read: {error}") from None
