"""Communicator: the collectives of the ranks of one model, by NCCL on GPUs and by gloo on CPUs.

The ranks meet at a file in a private folder, so no port is fixed; gloo listens on the loopback interface. It uses
process groups of its own instead of torch's default group, so that one process can hold ranks of several engines.
"""

import re
import threading
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chairlift.core.errors import EngineDead
from chairlift.model.weights.shard import Shard

START_SECONDS = 1800.0
"""Seconds that a rank waits for the others to load their weights."""

CONNECT_SECONDS = 300.0
"""Seconds that a rank waits for the others to connect, which import torch first."""

STEP_SECONDS = 90.0
"""Seconds that a rank waits for the others within a step; rank 0 finds a process that hangs before that."""

CHECK_SECONDS = 0.1
"""Seconds between two checks, while a rank connects, of whether the others still can."""

_LOCATION = re.compile(r"\[\S+:\d+\] ")
"""Where in its own source gloo noticed an error."""


class Communicator:
    """The collectives of one rank. Every rank must call the same ones in the same order.

    Each waits STEP_SECONDS at most, `minimum` START_SECONDS, and raises EngineDead if another rank has ended, does not
    call it in time, or calls another one.

    Attributes:
        shard: this rank and the number of ranks.
        num_calls: collectives called so far.
        failure: error of the last collective that failed; the ranks cannot go on after it.
        check_others: raises when another rank is known to be lost.
    """

    def __init__(
        self, shard: Shard, meeting_file: Path, device: torch.device, check_others: Callable[[], None] | None = None
    ) -> None:
        """Connect the ranks, which meet at a file that only they use.

        Raises EngineDead after CONNECT_SECONDS, and what `check_others` raises, which is called all the time. After
        that the caller must remove the file.
        """
        self.shard = shard
        self.check_others = check_others or (lambda: None)
        self.num_calls = 0
        self.failure: EngineDead | None = None
        self._device = device
        self._distributed: Any = import_module("torch.distributed")  # not at once: whole models need none of it
        connect = self._connect_nccl if device.type == "cuda" else self._connect_gloo
        try:
            store = self._distributed.FileStore(str(meeting_file), shard.num_ranks)
            store.set_timeout(timedelta(seconds=START_SECONDS))  # NCCL connects in the first collective
            self._group: Any = connect(store) if check_others is None else self._connect(lambda: connect(store), store)
            self._limit(STEP_SECONDS)
        except (RuntimeError, ValueError) as error:
            raise EngineDead(f"rank {shard.rank} cannot connect to the other ranks: {_reason(error)}") from error

    def all_reduce(self, values: Tensor) -> Tensor:
        """Add up a tensor over the ranks; returns the sum, in the same memory where that is contiguous."""
        values = values.contiguous()
        self._run(lambda: self._group.allreduce([values], self._reduce_options("SUM", STEP_SECONDS)))
        return values

    def gather_columns(self, values: Tensor) -> Tensor:
        """Return the ranks' tensors [R, C] side by side, [R, ranks * C], the lowest rank first."""
        (rows, columns), ranks = values.shape, self.shard.num_ranks
        if not rows:
            return values.new_empty(0, ranks * columns)
        gathered = values.new_empty(ranks * rows, columns)
        self._run(lambda: self._group._allgather_base(gathered, values.contiguous()))
        return gathered.view(ranks, rows, columns).transpose(0, 1).reshape(rows, ranks * columns)

    def minimum(self, value: int) -> int:
        """Return the least value of all ranks."""
        values = torch.tensor([value], dtype=torch.int64, device=self._device)
        self._limit(START_SECONDS)
        self._run(lambda: self._group.allreduce([values], self._reduce_options("MIN", START_SECONDS)))
        least = int(values.item())
        self._limit(STEP_SECONDS)
        return least

    def abort(self) -> None:
        """End the collectives in progress, whose ranks then raise; later ones raise, too. From any thread."""
        abort = getattr(self._group, "abort", None)
        if abort is not None:
            try:
                abort()
            except RuntimeError:  # gloo cannot; its connections end with the other ranks
                return

    def close(self) -> None:
        """Close the connections and end their threads; no collective may follow. May be called more than once."""
        self._group = None

    def _run(self, start: Callable[[], Any]) -> None:
        self.num_calls += 1
        try:
            start().wait()
        except RuntimeError as error:
            self.failure = EngineDead(f"rank {self.shard.rank} lost the other ranks in a collective: {_reason(error)}")
            raise self.failure from error

    def _connect(self, connect: Callable[[], Any], store: Any) -> Any:
        """Connect in a thread of its own, which is left when the check raises: nothing interrupts torch there."""
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(connect())
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=run, name="chairlift-connect", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(CHECK_SECONDS)
                self.check_others()
        except BaseException:
            store.set_timeout(timedelta(milliseconds=1))  # the thread ends when it misses the file
            raise
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    def _reduce_options(self, operation: str, seconds: float) -> Any:
        options = self._distributed.AllreduceOptions()
        options.reduceOp = getattr(self._distributed.ReduceOp, operation)
        options.timeout = timedelta(seconds=seconds)
        return options

    def _limit(self, seconds: float) -> None:
        """Set the seconds of collectives that are called from now on; NCCL knows no others."""
        self._group._set_default_timeout(timedelta(seconds=seconds))

    def _connect_gloo(self, store: Any) -> Any:
        gloo = self._distributed.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=CONNECT_SECONDS)
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        return gloo(store, self.shard.rank, self.shard.num_ranks, options)

    def _connect_nccl(self, store: Any) -> Any:
        nccl = self._distributed.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=CONNECT_SECONDS)
        return nccl(store, self.shard.rank, self.shard.num_ranks, options)


def _reason(error: Exception) -> str:
    """Return what torch says of an error, without its advice and its source's lines."""
    return _LOCATION.sub("", str(error).partition(". This is typically caused")[0].partition("\n")[0])
