"""The process of a rank that is alone: its start, its calls, and its end with standard input."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.step_plan import NewSequence, StepPlan, TokenMasks
from chairlift.model.backends.communicator import Communicator
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.distributed.frames import read_frame
from chairlift.model.distributed.rank_messages import (
    CallFailed,
    Collect,
    Collected,
    FromRank,
    Launch,
    Loading,
    Masks,
    PeersLost,
    Progress,
    RankStartFailed,
    ReleaseBlocks,
    Started,
    StartRank,
    ToRank,
    Warmup,
    decode_from_rank,
    encode,
)
from chairlift.model.distributed.rank_process import COMMAND
from chairlift.model.distributed.tensor_parallel_runner import digest
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.weights.shard import Shard
from support_forks import TORCH_MODULES, process_start
from support_plans import int32
from support_ranks import CPU

CONFIG = RunnerConfig(device="cpu", dtype="float64", num_blocks=64, kernels="torch", max_batch_tokens=64,
                      max_running_requests=4)  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=9).with_defaults({}, max_tokens=9, seed=0)


class Rank:
    """The process and its pipes: a fork, or started as by rank 0."""

    def __init__(self, *, is_forked: bool = True) -> None:
        self.num_beats = 0
        start = process_start(is_forked, modules=TORCH_MODULES)
        self._process: Any = start([sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, *messages: ToRank) -> None:
        assert self._process.stdin is not None
        for message in messages:
            self._process.stdin.write(encode(message))
        self._process.stdin.flush()

    def read(self) -> FromRank | None:
        """Return the next report but those of its progress, which are counted."""
        assert self._process.stdout is not None
        while (content := read_frame(self._process.stdout.fileno())) is not None:
            if not isinstance(message := decode_from_rank(content), Progress):
                return message
            self.num_beats += 1
        return None

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Iterator[Rank]:
    made = Rank(is_forked=getattr(request, "param", True))
    yield made
    made.kill()


def plan_of(step_id: int, token: int, *, masked: bool = False) -> StepPlan:
    """Make the plan of one sequence with two prompt tokens, in block 0."""
    return StepPlan(
        step_id, (), (NewSequence(0, (5, token), 0, GREEDY),), int32(0), int32(2), int32(0),
        np.zeros((1, 4), np.int32), int32(5, token), int32(0), masked_samples=int32(0) if masked else int32(),
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("rank", [False], indirect=True, ids=["started"])
def test_a_rank_runs_calls_in_order_and_ends_with_its_input(rank: Rank, tmp_path: Path) -> None:
    only_a = np.zeros((1, 9), np.int32)
    only_a[0, ord("a") // 32] = 1 << ord("a") % 32
    masks = TokenMasks(int32(0), only_a)
    rank.send(
        StartRank(CONFIG, 0, 1, str(tmp_path / "ranks" / "file"), 30, beat_seconds=0.01), Warmup(),
        Launch(plan_of(0, 7)), Collect(), Launch(plan_of(1, 300)),
        Launch(plan_of(2, 7, masked=True)), Masks(2, masks), Collect(), ReleaseBlocks(9),
    )  # fmt: skip
    (tmp_path / "ranks").mkdir()
    assert (rank.read(), rank.read()) == (Loading(), Started())
    own = TorchRunner(CONFIG)
    own.start()
    own.launch(plan_of(0, 7))
    assert rank.read() == Collected(3, digest(own.collect()))
    failed = rank.read()
    assert isinstance(failed, CallFailed) and failed.call == 4 and "token id 300" in failed.reason
    own.launch(plan_of(2, 7, masked=True))
    own.supply_masks(2, masks)
    result = own.collect()
    own.stop()
    assert result.tokens.tolist() == [ord("a")]
    assert rank.read() == Collected(7, digest(result))
    assert rank.end() == 0
    assert rank.read() is None
    assert rank.num_beats > 1
    assert not (tmp_path / "ranks").exists(), "rank 0 may have been killed"


def test_a_rank_that_cannot_load_says_why_and_ends(rank: Rank, tmp_path: Path) -> None:
    rank.send(StartRank(RunnerConfig(device="cpu", model=str(tmp_path)), 0, 1, str(tmp_path / "file"), 30))
    assert rank.read() == Loading()
    failed = rank.read()
    assert isinstance(failed, RankStartFailed) and "config.json" in failed.message and failed.code == "model_error"
    assert rank.read() is None


def test_a_rank_that_loses_the_others_says_so(rank: Rank, tmp_path: Path) -> None:
    """Rank 0 ends after the start of both; only rank 0's process is to blame, which others tell."""
    rank.send(StartRank(CONFIG, 1, 2, str(tmp_path / "file"), 30), Launch(plan_of(0, 7)))
    assert rank.read() == Loading()
    communicator = Communicator(Shard(0, 2), tmp_path / "file", CPU)
    communicator.minimum(2**30)  # the free memory: rank 1 may be connecting until it takes part in a collective
    assert rank.read() == Started()
    communicator.close()
    lost = rank.read()
    assert isinstance(lost, PeersLost) and lost.reason.startswith("rank 1 lost the other ranks in a collective: ")
    assert rank.read() is None


def test_a_rank_whose_start_has_begun_ends_with_rank_0_and_removes_the_folder(tmp_path: Path) -> None:
    ranks = [Rank() for _ in range(2)]
    for number, rank in enumerate(ranks):
        folder = tmp_path / str(number)
        folder.mkdir()
        rank.send(StartRank(CONFIG, 1, 2, str(folder / "file"), 30))
    # Where the folder goes while torch opens its file there, the system ends the process.
    assert all(rank.end() in (0, -signal.SIGALRM) for rank in ranks)
    assert not list(tmp_path.iterdir())
    for rank in ranks:
        rank.kill()
