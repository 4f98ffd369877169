"""Ranks of one model: as threads of the test's process, as fakes without a process, and the processes of real ones."""

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from chairlift.engine.runner.base import RunnerInfo
from chairlift.model.backends.communicator import Communicator
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.distributed.rank_messages import Loading, StartRank
from chairlift.model.distributed.tensor_parallel_runner import TensorParallelRunner
from chairlift.model.layers.mlp import MLP
from chairlift.model.weights.shard import Shard
from support_forks import children_of

CPU = torch.device("cpu")
WAIT_SECONDS = 60.0
"""Timeout of a thread, in seconds. Only a failing test waits this long."""

T = TypeVar("T")


def run_ranks(num_ranks: int, function: Callable[[Communicator], T]) -> list[T]:
    """Connect the ranks, run the function on each, and return their results; raises the first error of a rank."""
    results: dict[int, Any] = {}
    errors: list[BaseException] = []
    connected: list[Communicator] = []  # one that ends while another rank still connects would break that

    def run(rank: int, meeting_file: Path) -> None:
        try:
            with torch.inference_mode():
                connected.append(communicator := Communicator(Shard(rank, num_ranks), meeting_file, CPU))
                results[rank] = function(communicator)
        except BaseException as error:
            errors.append(error)

    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=run, args=(rank, Path(folder) / "ranks")) for rank in range(num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(num_ranks)]


FITTING_TOKENS = 4
"""Tokens of the largest step after breaks_large_steps()."""


class FakeRank:
    """A RankProcess without a process: it keeps the messages that it gets, and a test reports for it."""

    made: "list[FakeRank]"

    def __init__(self, start: StartRank, on_message: Callable[..., None], on_end: Callable[..., None]) -> None:
        self.rank = start.rank
        self.pid = 1000 + start.rank
        self.frames: list[bytes] = []
        self.is_killed = self.is_closed = False
        self.report = lambda message: on_message(self.rank, message)
        self.end = lambda how: on_end(self.rank, how)
        type(self).made.append(self)
        self.report(Loading())

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def kill(self) -> None:
        self.is_killed = True

    def close_input(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def start_messages(num_ranks: int, beat_seconds: float = 1.0) -> list[StartRank]:
    return [
        StartRank(RunnerConfig(), rank, num_ranks, "/nowhere/ranks", 30, beat_seconds=beat_seconds)
        for rank in range(1, num_ranks)
    ]


def _is_rank() -> bool:
    """Whether this is the process of a rank, not that of the test."""
    main: Any = sys.modules["__main__"]
    return main.__spec__ is not None and main.__spec__.name.endswith("rank_main")


def differs_by_rank() -> Callable[[Tensor, Tensor], Tensor]:
    """Make a logits processor that raises in the processes of ranks only."""

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        if _is_rank():
            raise ValueError("this rank differs")
        return scores

    return process


def hangs_on_rank() -> Callable[[Tensor, Tensor], Tensor]:
    """Make a logits processor that sleeps in the processes of ranks only."""

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        time.sleep(3600 if _is_rank() else 0)
        return scores

    return process


def breaks_layers_of_rank() -> Callable[[Tensor, Tensor], Tensor]:
    """Make a logits processor that does nothing; in the processes of ranks every later step fails in its layers."""

    def run_out_of_memory(*_: Any) -> Tensor:
        raise MemoryError("this rank has no memory")

    if _is_rank():
        MLP.__call__ = run_out_of_memory  # type: ignore[method-assign]
    return lambda input_ids, scores: scores


def breaks_large_steps() -> Callable[[Tensor, Tensor], Tensor]:
    """Make a logits processor that does nothing; on every rank, layers fail for more than FITTING_TOKENS tokens."""

    def run_out_of_memory(mlp: MLP, x: Tensor, *more: Any) -> Tensor:
        if len(x) > FITTING_TOKENS:
            raise torch.OutOfMemoryError(f"{len(x)} tokens do not fit")
        return call(mlp, x, *more)

    call = MLP.__call__
    MLP.__call__ = run_out_of_memory  # type: ignore[method-assign]
    return lambda input_ids, scores: scores


def rank_pids(pid: int) -> list[int]:
    """Return the processes of ranks below a process, started or forked (support_forks.py)."""
    found = []
    for child, command in children_of(pid).items():
        is_rank = any(word.endswith("rank_main") for word in command)  # or a script in the place of a rank
        found += [child] if is_rank else rank_pids(child)
    return found


class KeptRanks:
    """A Runner of two ranks which stays up from one engine to the next.

    Attributes:
        num_blocks: blocks that the next engine uses, the first ones; None for all.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._runner = TensorParallelRunner(replace(config, tensor_parallel_size=2))
        self._info = self._runner.start()
        self.num_blocks: int | None = None

    def start(self) -> RunnerInfo:
        return replace(self._info, num_blocks=self.num_blocks or self._info.num_blocks)

    def stop(self) -> None:
        """Leave the ranks as they are; see close()."""

    def close(self) -> None:
        self._runner.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)
