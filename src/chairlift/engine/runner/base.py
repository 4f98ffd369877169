"""Runner: whoever turns a StepPlan into tokens. The engine knows this protocol and nothing of tensors."""

import importlib
from dataclasses import dataclass, field
from typing import Protocol

from chairlift.core.errors import ConfigError
from chairlift.engine.step_plan import StepPlan, StepResult, TokenMasks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """What a runner says of itself once it has started.

    Attributes:
        vocab_size: ids are below this.
        max_model_len: tokens of one sequence at most (prompt and output).
        num_blocks: pages it has memory for.
        block_size: tokens in a page.
        windows: one entry a layer group, None for full attention.
        page_bytes: memory of a page; 0 where there is none.
        model_id: names the weights; part of the prefix cache's salt.
        logits_processors: names that requests may choose.
        chunk_tokens: prompt tokens of one step, above which more of them make a step longer and nothing faster; None
            where there is no such number.
        cpus: processors that it keeps busy while it computes; none where it computes elsewhere, or little.
        report: what was derived and how long each phase took, for people: (name, value).
    """

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    block_bytes: int = 0
    windows: tuple[int | None, ...] = (None,)
    model_id: str = ""
    logits_processors: tuple[str, ...] = ()
    preferred_prefill_tokens: int | None = None
    busy_cpus: tuple[int, ...] = ()
    startup_report: tuple[tuple[str, str], ...] = ()


class Runner(Protocol):
    """Runs plans in the order in which they are launched.

    Contract: `collect` answers launches in order. When `launch` or `collect` raises, that step and every step launched
    after it are void and forgotten: nothing of them will be collected, and none is still running. The engine then
    admits their sequences afresh. Blocks of void steps hold nothing that anybody reads.
    """

    def start(self) -> RunnerInfo:
        """Load what is needed; called once, before all else."""
        ...

    def launch(self, plan: StepPlan) -> None:
        """Begin a step; may return before it is done."""
        ...

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Say what may be drawn in the rows that the plan of a step calls masked; once, before its collect().

        They may come before the launch, and while the model runs: whatever follows the logits waits for them.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest step that was launched and not collected."""
        ...

    def warmup(self) -> None:
        """Compute as much as the largest steps do, so that no later step is the first of its size; nothing in flight.

        Nothing that a step reads or a caller sees changes. May raise what a step may; the runner works on.
        """
        ...

    def stop(self) -> None:
        """Free everything; may be called in any state, more than once."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """How to make a runner somewhere else: a factory's name and the bytes it takes.

    Attributes:
        factory: "package.module:function"; the function takes the payload and returns a Runner.
        payload: msgpack (msgspec) bytes.
    """

    factory: str
    payload: bytes = field(default=b"", repr=False)

    def build(self) -> Runner:
        """Import the factory and call it. Raises ConfigError when there is no such function."""
        module_name, _, function = self.factory.partition(":")
        try:
            make = getattr(importlib.import_module(module_name), function)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"no runner factory {self.factory!r}: {error}") from error
        runner: Runner = make(self.payload)
        return runner
