"""TensorParallelRunner: a Runner whose model is shared by several processes; rank 0 is this one.

    engine ─► StepPlan ─► rank 0  ─ pipe ─► rank 1, 2 ...     each call of the engine, in its order
                            │                 │
                        TorchRunner ◄─────► TorchRunner       collectives within layers and lm_head
                            │                 │
                         StepResult       the same tokens, kept for the next step

Every rank has the same logits and the same sampling state, so no token travels (ADR 0046). This wraps a runner that
computes within its calls; two steps in flight come from the threaded runner around it.
"""

import logging
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from chairlift.core.errors import ConfigError, EngineDead
from chairlift.engine.runner.base import Runner, RunnerInfo
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult
from chairlift.model.backends.communicator import Communicator
from chairlift.model.config.device_option import pick_device
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.runner_option_checks import check_options
from chairlift.model.config.select_model_config import read_config
from chairlift.model.distributed.rank_group import RankGroup
from chairlift.model.distributed.rank_messages import Collect, Launch, Masks, ReleaseBlocks, StartRank, Warmup
from chairlift.model.distributed.rank_watch import BEAT_SECONDS
from chairlift.model.loading.tiny_model import tiny_config
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.weights.shard import Shard, check_shards

MEETING_FILE = "ranks"


class TensorParallelRunner:
    """A Runner (engine/runner/base.py) of `tensor_parallel_size` ranks, which FailsBetweenSteps.

    Owns: the processes of the other ranks, and the folder where the ranks meet.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._config = config
        self._group = RankGroup()
        self._folder: Path | None = None
        self._inner: TorchRunner | None = None

    def start(self) -> RunnerInfo:
        """Start the processes, load each rank's part of the model, allocate the caches.

        Raises ConfigError for an invalid option, ModelError for an invalid model folder, EngineDead if a rank ends.
        """
        config = self._config
        check_options(config)
        check_factories(config.logits_processor_factories)
        ranks = config.tensor_parallel_size
        check_shards(read_config(Path(config.model), config.model_impl) if config.model else tiny_config(), ranks)
        devices = rank_devices(config.device, ranks)
        self._folder = Path(tempfile.mkdtemp(prefix="chairlift-ranks-"))
        meeting_file = self._folder / MEETING_FILE
        level = logging.getLogger("chairlift").getEffectiveLevel()
        import_path = tuple(os.fsencode(Path(folder).absolute()) for folder in sys.path)
        starts = [
            StartRank(
                replace(config, device=devices[rank]), rank, ranks, str(meeting_file), level, import_path, BEAT_SECONDS
            )
            for rank in range(1, ranks)
        ]
        try:
            self._group.start(starts)
            communicator = Communicator(Shard(0, ranks), meeting_file, pick_device(devices[0]), self._group.check)
            self._group.attach(communicator)
            own = replace(config, device=devices[0])
            self._inner = TorchRunner(own, communicator=communicator)
            info = self._inner.start()
            self._group.wait_until_started()
        except EngineDead as error:
            cause = self._group.cause(error)
            self.stop()
            raise cause from error
        except BaseException:
            self.stop()
            raise
        return replace(info, startup_report=(*info.startup_report, ("tensor_parallel_size", str(ranks))))

    def launch(self, plan: StepPlan) -> None:
        """Launch a step on every rank; raises as TorchRunner.launch, and EngineDead."""
        inner = self._started()
        self._group.call(Launch(plan), lambda: inner.launch(plan))

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Store the masks on every rank; raises EngineDead."""
        inner = self._started()
        self._group.call(Masks(step_id, masks), lambda: inner.supply_masks(step_id, masks))

    def collect(self) -> StepResult:
        """Collect a step on every rank; the other ranks compare their tokens with those returned. Raises EngineDead."""
        inner = self._started()

        def collect() -> StepResult:
            result = inner.collect()
            self._group.add_digest(digest(result))
            return result

        return self._group.call(Collect(), collect)

    def warmup(self) -> None:
        """Warm up every rank."""
        self._group.call(Warmup(), self._started().warmup)

    def device_memory(self) -> tuple[int, int]:
        """Return the memory of the device of rank 0."""
        return self._started().device_memory()

    def release_blocks(self, num_kept: int, moves: Sequence[tuple[int, int]] = ()) -> int:
        """Return host memory of every rank's cache to the system; returns bytes of all ranks."""
        inner = self._started()
        released = self._group.call(ReleaseBlocks(num_kept, moves), lambda: inner.release_blocks(num_kept, moves))
        return released * self._config.tensor_parallel_size

    def on_failure(self, callback: Callable[[EngineDead], None]) -> None:
        """Call the callback, in any thread, when a rank has ended; see FailsBetweenSteps."""
        self._group.on_failure(callback)

    def stop(self) -> None:
        """End the other ranks and free this one."""
        self._group.close()
        if self._inner is not None:
            self._inner.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _started(self) -> TorchRunner:
        assert self._inner is not None, "the runner has not started"
        return self._inner


def build(payload: bytes) -> Runner:
    """Build a runner from the bytes of a RunnerConfig: a factory for RunnerSpec."""
    return TensorParallelRunner(RunnerConfig.decode(payload))


def check_factories(factories: Mapping[str, str]) -> None:
    """Raise ConfigError for a logits processor in the program's own script, which the other ranks do not run."""
    for name, path in factories.items():
        if path.partition(":")[0] == "__main__":
            raise ConfigError(
                f"logits processor {name!r} at {path!r} is in the script itself, which only rank 0 runs; "
                "move it to a module beside the script, or set tensor_parallel_size to 1",
                option="logits_processor_factories",
            )


def digest(result: StepResult) -> int:
    """Return a digest of a step's tokens and of the rows that failed, in which the ranks must agree."""
    rows = np.array(sorted(row for row, _ in result.row_errors), np.int32)
    return zlib.crc32(rows.tobytes(), zlib.crc32(result.tokens.tobytes()))


def rank_devices(name: str, num_ranks: int) -> list[str]:
    """Return the device of each rank: the CPU for all, or a GPU for each.

    Raises ConfigError for a device that cannot be used, or fewer GPUs than ranks.
    """
    device = pick_device(name)
    if device.type == "cpu":
        return ["cpu"] * num_ranks
    if device.type != "cuda" or name not in ("auto", "cuda"):
        raise ConfigError(
            f"tensor_parallel_size is {num_ranks}, but device is {name!r}; set it to 'cuda', whose first {num_ranks} "
            "devices are used (CUDA_VISIBLE_DEVICES chooses them), or to 'cpu'", option="device",
        )  # fmt: skip
    if (count := torch.cuda.device_count()) < num_ranks:
        raise ConfigError(
            f"tensor_parallel_size is {num_ranks}, but the machine has {count} GPUs that this process can see; "
            f"set it to {count} or less", option="tensor_parallel_size",
        )  # fmt: skip
    return [f"cuda:{rank}" for rank in range(num_ranks)]
