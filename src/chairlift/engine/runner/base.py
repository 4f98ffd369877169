"""Runner: the protocol of what turns a StepPlan into tokens. The engine has no other dependency on tensors."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from chairlift.core.errors import ConfigError, EngineDead
from chairlift.core.model_facts import ModelFacts
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """Describes a runner that has started.

    Attributes:
        vocab_size: upper bound of token ids (exclusive).
        max_model_len: maximum tokens of one sequence, prompt and output together.
        num_blocks: KV cache blocks that fit in memory.
        block_size: tokens in a block.
        block_bytes: memory of a block; 0 if the runner has no KV cache.
        max_cached_blocks: cached blocks above which they are evicted though blocks are left that were never used; the
            memory of blocks follows their use. None where all memory exists from the start.
        windows: attention window of each layer group, None for full attention; empty where all layers keep a state.
        model_id: identifies the weights; part of the prefix cache's salt.
        logits_processors: names that requests may choose.
        preferred_prefill_tokens: prompt tokens of a step above which more tokens only make the step longer, at the same
            tokens per second; None if there is no such number.
        busy_cpus: CPUs that the runner keeps busy while it computes; empty if it computes on a device.
        may_have_low_priority: whether the threads that compute may have a lower priority than others; not threads that
            wait for each other in every operation, which stand still beside a program with a higher one.
        hidden_size: length of an embedding; 0 if the runner makes none.
        device: where it computes, as torch names it; "" without a model.
        is_asynchronous: whether launch() itself returns before the step is done, as on a CUDA device.
        has_state: whether the model has layers that keep a state for each sequence, instead of keys and values.
        num_state_checkpoints: entries of the pool of saved states, numbers 0 to n - 1; 0 without such a pool, and then
            no prefix of such a model is shared.
        state_bytes: memory of the state of one sequence, of all layers together.
        max_running_requests: sequences for whose states there is memory; None for as many as are configured.
        no_drafts_reason: why sequences get no drafts, in one sentence; "" where these change no token.
        facts: facts about the model, for people.
        startup_report: derived values and the time of each start-up phase, for people: (name, value).
    """

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    block_bytes: int = 0
    max_cached_blocks: int | None = None
    windows: tuple[int | None, ...] = (None,)
    model_id: str = ""
    logits_processors: tuple[str, ...] = ()
    preferred_prefill_tokens: int | None = None
    busy_cpus: tuple[int, ...] = ()
    may_have_low_priority: bool = True
    hidden_size: int = 0
    device: str = ""
    is_asynchronous: bool = False
    has_state: bool = False
    num_state_checkpoints: int = 0
    state_bytes: int = 0
    max_running_requests: int | None = None
    no_drafts_reason: str = ""
    facts: ModelFacts = field(default_factory=ModelFacts)
    startup_report: tuple[tuple[str, str], ...] = ()


class Runner(Protocol):
    """Runs plans in the order in which they are launched.

    Contract: `collect` returns results in the order of the launches. When `launch` or `collect` raises, that step and
    every later launched step are discarded: none of them is still running, and their results are never collected. The
    engine then adds their sequences again from the start, once it has the tokens of all earlier steps, and reads no
    block and no checkpoint that a discarded step has written. It takes the states of their slots for lost: their rows
    begin at position 0 or with a checkpoint. A MemoryError says that a smaller step may succeed; the runner has freed
    what it could.
    """

    def start(self) -> RunnerInfo:
        """Load the model and allocate memory. Called once, before all other methods."""
        ...

    def launch(self, plan: StepPlan) -> None:
        """Start a step. May return before the step is done."""
        ...

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Supply the token masks of a step's masked rows, once and before its collect().

        The call may come before the launch or while the model runs. Sampling waits for the masks.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest step that is not collected yet, and return its result."""
        ...

    def warmup(self) -> None:
        """Run steps of the largest sizes, so that no later step is the first of its size.

        No step may be in flight.

        Changes no state that a step reads. May raise the errors of a step; the runner stays usable.
        """
        ...

    def stop(self) -> None:
        """Free all resources. May be called in any state and more than once."""
        ...


@runtime_checkable
class ReleasesBlocks(Protocol):
    """A Runner that can return memory of the KV cache to the system while it runs."""

    def release_blocks(self, num_kept: int, moves: Sequence[tuple[int, int]] = ()) -> int:
        """Return the memory of all blocks but the first num_kept; returns bytes, 0 where it is not possible.

        Their contents are lost, except that `moves`, (from, to), are copied before. No sequence may hold them and no
        step may be in flight. They can be written again.
        """
        ...


@runtime_checkable
class RenewsThreads(Protocol):
    """A Runner with threads of its own that compute."""

    def renew_threads(self) -> None:
        """Start the threads that compute anew, with the priority of the calling thread.

        No step may be in flight. Raises RuntimeError if they cannot be started; the old ones stay then.
        """
        ...


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """Describes a loaded LoRA adapter.

    Attributes:
        digest: of its files: equal for equal files wherever they are, and another one after any change.
        num_bytes: memory of its numbers.
        rank: largest rank of its products.
    """

    digest: str
    num_bytes: int
    rank: int


@runtime_checkable
class LoadsAdapters(Protocol):
    """A Runner whose sequences may have LoRA adapters (NewSequence.adapter)."""

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load the adapter of a folder under a number, at least 1, that no other one has.

        May be called from any thread while steps run, which it does not hold. Raises ModelError in one sentence; then
        nothing of the adapter stays.
        """
        ...

    def drop_adapter(self, number: int) -> None:
        """Free an adapter that no sequence has any more; an unknown number is ignored."""
        ...


def adapter_loader(runner: object) -> LoadsAdapters:
    """Return the runner as one that loads adapters. Raises ConfigError for another one."""
    if not isinstance(runner, LoadsAdapters):
        raise ConfigError(
            "this engine cannot load LoRA adapters; start one whose model can, with the option enable_lora",
            option="enable_lora",
        )
    return runner


@runtime_checkable
class ReportsDeviceMemory(Protocol):
    """A Runner that may compute on a device with memory of its own."""

    def device_memory(self) -> tuple[int, int]:
        """Return the bytes of tensors on the device, and the bytes held for them; zeros without a device.

        Takes much less time than a step, and may be called while steps are in flight.
        """
        ...


@runtime_checkable
class FailsBetweenSteps(Protocol):
    """A Runner that may end for good while no call is in progress: one of its processes dies."""

    def on_failure(self, callback: Callable[[EngineDead], None]) -> None:
        """Call the callback once, from any thread, when the runner cannot continue; at once if it cannot already."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """How to build a runner in another process: a factory's name and its payload.

    Attributes:
        factory: "package.module:function"; the function takes the payload and returns a Runner.
        payload: msgpack (msgspec) bytes.
    """

    factory: str
    payload: bytes = field(default=b"", repr=False)

    def build(self) -> Runner:
        """Import the factory and call it. Raises ConfigError for a missing factory."""
        module_name, _, function = self.factory.partition(":")
        try:
            make = getattr(importlib.import_module(module_name), function)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"no runner factory {self.factory!r}: {error}") from error
        runner: Runner = make(self.payload)
        return runner
