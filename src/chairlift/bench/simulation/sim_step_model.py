"""SimStepModel: predicts the duration of a step from a few costs, given by hand or fitted to a run (step_fit.py).

    seconds = step + row * rows + prefill_token * prefill_tokens + context_token * context_tokens
                   + prefill_pair * prefill_pairs

`step` is the constant cost of a step (weights are read once). A row is one sequence's share (matrix products,
sampling), context tokens are the keys and values that are read, and a prefill pair is one attention product inside a
prompt. No cost is negative. step_cost_model.py fits a similar model while an engine runs; this one is fixed and stands
in for the machine.

With speculative decoding a step without prefill tokens brings a row 1 + confirmed_drafts tokens. A simulated step
brings it one, so it takes that part of the step and of its context tokens, and the whole row: each token has a row of
its own. Rejected drafts have no cost here.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from chairlift.core.errors import ConfigError
from chairlift.core.file_writes import write_whole
from chairlift.engine.step_plan import StepPlan

COSTS = ("step", "row", "prefill_token", "context_token", "prefill_pair")


class StepWork(NamedTuple):
    """The amount of work in a step, in the order of COSTS.

    Attributes:
        steps: 1.
        rows: number of sequences.
        prefill_tokens: new tokens of rows with more than one.
        context_tokens: tokens that the rows attend to, summed over the rows.
        prefill_pairs: pairs (token, token that it attends to) of rows with more than one new token.
    """

    steps: int
    rows: int
    prefill_tokens: int
    context_tokens: int
    prefill_pairs: int

    @classmethod
    def of_plan(cls, plan: StepPlan) -> "StepWork":
        """Return the work of a plan."""
        prefill = plan.num_tokens - int(np.count_nonzero(plan.num_new_tokens == 1))
        return cls(1, plan.num_rows, prefill, plan.num_context_tokens, plan.num_prefill_pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimStepModel:
    """The costs of a step in seconds; StepWork describes the units.

    Attributes:
        step: constant cost of a step.
        row: cost of a sequence.
        prefill_token: cost of a prefill token.
        context_token: cost of a context token.
        prefill_pair: cost of a prefill pair.
        confirmed_drafts: mean drafts that a sequence confirms in a step without prefill tokens.
        noise: standard deviation of the logarithm of a random factor of each step's time; the factor's mean is 1.
        origin: description of the source of the numbers.

    Raises ConfigError when a number is negative or not finite, or when a step takes no time at all.
    """

    step: float
    row: float = 0.0
    prefill_token: float = 0.0
    context_token: float = 0.0
    prefill_pair: float = 0.0
    confirmed_drafts: float = 0.0
    noise: float = 0.0
    origin: str = ""

    def __post_init__(self) -> None:
        for name in (*COSTS, "confirmed_drafts", "noise"):
            if not 0 <= (value := getattr(self, name)) < float("inf"):
                raise ConfigError(f"{name} of the step model must be a finite number of at least 0, got {value}")
        if self.step == self.row == 0:
            raise ConfigError("step and row of the step model must not both be 0: a step would take no time")

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step without prefill tokens brings to each of its rows, on average."""
        return 1 + self.confirmed_drafts

    @property
    def decode_context_token(self) -> float:
        """Cost of a context token for each token of a step without prefill tokens."""
        return self.context_token / self.tokens_per_step

    def seconds(self, work: StepWork) -> float:
        """Return the seconds of a step with this work, without noise; one row brings one token."""
        _, rows, prefill_tokens, context_tokens, prefill_pairs = work
        if not prefill_tokens:
            return self.step / self.tokens_per_step + self.row * rows + self.decode_context_token * context_tokens
        return (
            self.step + self.row * rows + self.prefill_token * prefill_tokens
            + self.context_token * context_tokens + self.prefill_pair * prefill_pairs
        )  # fmt: skip


SMOL135_CPU = SimStepModel(
    step=0.0136, row=0.000335, prefill_token=0.000376, context_token=4.23e-6, prefill_pair=4.8e-7,
    origin=(
        "fitted to 1,670 steps (1 to 22 rows, prompts of 8 to 1,000 tokens) of the smol135 shape (Llama, 30 layers, "
        "hidden 576) in bfloat16 with attention "
        "torch on 2 threads of a Zen 4, 2026-11-20; error: median 6 %, p90 17 %"
    ),
)  # fmt: skip
"""The default step time model of a simulation."""

SMALL_CPU = SimStepModel(
    step=0.020, row=0.0012, prefill_token=0.0005, context_token=4.4e-6, prefill_pair=5.7e-7,
    origin="the smol135 shape on two CPU cores, rounded; fixed here so that scenarios do not move with a new fit",
)  # fmt: skip
"""The step time model of comparisons of policies."""


def read_model(path: str) -> SimStepModel:
    """Read a model from a JSON file, such as {"step": 0.03, "row": 0.001}.

    Raises ConfigError when the file cannot be read or is invalid.
    """
    try:
        costs = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, float | str])
        names = [field.name for field in fields(SimStepModel)]
        if unknown := [name for name in costs if name not in names]:
            raise ConfigError(f"{path}: unknown field {unknown[0]!r}; available are {', '.join(names)}")
        return msgspec.convert(costs, SimStepModel)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} does not contain step times: {error}") from None


def write_model(path: str, times: SimStepModel) -> None:
    """Write a model as JSON. Raises FileNotWritten."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(asdict(times)), indent=2) + b"\n")
