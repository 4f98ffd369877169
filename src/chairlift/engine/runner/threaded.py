"""ThreadedRunner: a runner around a runner that works in a thread, so that two launches can be in flight."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from chairlift.core.errors import EngineDead
from chairlift.engine.runner.base import (
    AdapterInfo,
    FailsBetweenSteps,
    ReleasesBlocks,
    RenewsThreads,
    ReportsDeviceMemory,
    Runner,
    RunnerInfo,
    adapter_loader,
)
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult


class ThreadedRunner:
    """Runs the inner runner's steps one after another in its own thread.

    After a step that raised, the plans launched after it are discarded: each plan has the generation in which it was
    launched, and collecting the failure starts the next generation.
    """

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._plans: SimpleQueue[tuple[int, StepPlan | None] | None] = SimpleQueue()  # no plan: warm up
        self._masks: SimpleQueue[tuple[int, TokenMasks] | None] = SimpleQueue()
        self._results: SimpleQueue[StepResult | BaseException | None] = SimpleQueue()
        self._generation = 0
        self._thread: threading.Thread | None = None

    def start(self) -> RunnerInfo:
        """Start the inner runner here, then the thread."""
        info = self._inner.start()
        self.start_thread()
        return info

    def start_thread(self) -> None:
        """Start the thread alone, for an inner runner that has started."""
        self._thread = threading.Thread(target=self._work, name="chairlift-runner", daemon=True)
        self._thread.start()

    def launch(self, plan: StepPlan) -> None:
        """Hand the plan to the thread."""
        self._plans.put((self._generation, plan))

    def release_blocks(self, num_kept: int, moves: Sequence[tuple[int, int]] = ()) -> int:
        """Release blocks of the inner runner, which is in no step."""
        return self._inner.release_blocks(num_kept, moves) if isinstance(self._inner, ReleasesBlocks) else 0

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load an adapter into the inner runner, in the calling thread, while steps run. Raises ConfigError, too."""
        return adapter_loader(self._inner).load_adapter(number, folder)

    def drop_adapter(self, number: int) -> None:
        """Free an adapter of the inner runner."""
        adapter_loader(self._inner).drop_adapter(number)

    def renew_threads(self) -> None:
        """Start the thread and those of the inner runner anew."""
        before = self._thread
        thread = threading.Thread(target=self._work_after, args=(before,), name="chairlift-runner", daemon=True)
        thread.start()  # if it cannot be started, the old one goes on
        self._plans.put(None)
        self._thread = thread
        if isinstance(self._inner, RenewsThreads):
            self._inner.renew_threads()

    def device_memory(self) -> tuple[int, int]:
        """Return the memory of the inner runner's device."""
        return self._inner.device_memory() if isinstance(self._inner, ReportsDeviceMemory) else (0, 0)

    def on_failure(self, callback: Callable[[EngineDead], None]) -> None:
        """Pass the callback to the inner runner, if it fails between steps."""
        if isinstance(self._inner, FailsBetweenSteps):
            self._inner.on_failure(callback)

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Hand the masks to the thread, which waits for them in a step with masked rows."""
        self._masks.put((step_id, masks))

    def collect(self) -> StepResult:
        """Wait for the oldest step; raises what it raised."""
        result = self._next()
        assert result is not None, "a warm-up has no result"
        return result

    def warmup(self) -> None:
        """Warm up the inner runner in its thread, and wait; prepared state may belong to that thread."""
        self._plans.put((self._generation, None))
        result = self._next()
        assert result is None, "a warm-up while steps are in flight"

    def _next(self) -> StepResult | None:
        result = self._results.get()
        if isinstance(result, BaseException):
            self._generation += 1
            raise result
        return result

    def stop(self) -> None:
        """End the thread after the step in progress, then the inner runner."""
        if self._thread is not None:
            self._plans.put(None)
            self._masks.put(None)
            self._thread.join()
            self._thread = None
        self._inner.stop()

    def _work_after(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        self._work()

    def _work(self) -> None:
        failed = -1
        while (item := self._plans.get()) is not None:
            generation, plan = item
            if generation == failed:
                continue
            try:
                if plan is None:
                    self._inner.warmup()
                    self._results.put(None)
                else:
                    self._inner.launch(plan)
                    if len(plan.masked_samples) and not self._pass_masks(plan.step_id):
                        return
                    self._results.put(self._inner.collect())
            except BaseException as error:
                failed = generation
                self._results.put(error)

    def _pass_masks(self, step_id: int) -> bool:
        """Wait for the masks of a step and drop those of discarded steps; return False at shutdown."""
        while (item := self._masks.get()) is not None:
            if item[0] == step_id:
                self._inner.supply_masks(*item)
                return True
        return False
