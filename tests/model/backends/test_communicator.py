"""The collectives of ranks that are threads, and what a rank notices of one that has ended."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from chairlift.core.errors import EngineDead
from chairlift.model.backends.communicator import Communicator
from chairlift.model.weights.shard import Shard
from support_process import wait_until
from support_ranks import CPU, run_ranks
from support_shares import for_each


@for_each("num_ranks", [2, 3])
@for_each("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_and_columns_are_those_of_all_ranks(num_ranks: int, dtype: torch.dtype) -> None:
    def own(rank: int) -> torch.Tensor:
        return torch.arange(6, dtype=dtype).view(2, 3) + 10 * rank

    def run(communicator: Communicator) -> tuple[torch.Tensor, torch.Tensor, int]:
        rank = communicator.shard.rank
        summed = communicator.all_reduce(own(rank).T.contiguous().T)  # a tensor that is not contiguous
        return summed, communicator.gather_columns(own(rank)), communicator.num_calls

    for summed, gathered, num_calls in run_ranks(num_ranks, run):
        assert torch.equal(summed, sum((own(rank) for rank in range(num_ranks)), torch.zeros(2, 3, dtype=dtype)))
        assert torch.equal(gathered, torch.cat([own(rank) for rank in range(num_ranks)], dim=1))
        assert num_calls == 2


def test_the_columns_of_no_rows_need_no_collective() -> None:
    for gathered in run_ranks(2, lambda communicator: communicator.gather_columns(torch.empty(0, 5))):
        assert gathered.shape == (0, 10)


def test_the_minimum_is_that_of_all_ranks() -> None:
    big = 2**52  # bytes need more than 32 bits
    assert run_ranks(3, lambda communicator: communicator.minimum(big + communicator.shard.rank)) == [big] * 3


def test_a_rank_that_ended_fails_the_collective_and_later_ones() -> None:
    have_connected, has_ended = threading.Barrier(2), threading.Event()

    def run(communicator: Communicator) -> None:
        have_connected.wait(30)
        if communicator.shard.rank:
            has_ended.set()
            del communicator._group  # its connections are closed
            return
        assert has_ended.wait(30)
        with pytest.raises(EngineDead, match="rank 0 lost the other ranks in a collective"):
            communicator.all_reduce(torch.ones(100_000))
        assert communicator.failure is not None
        assert "pytorch" not in str(communicator.failure) and "caused by" not in str(communicator.failure)

    run_ranks(2, run)


def test_a_rank_that_no_other_meets_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.model.backends.communicator.CONNECT_SECONDS", 0.2)
    with pytest.raises(EngineDead, match="rank 0 cannot connect to the other ranks"):
        Communicator(Shard(0, 2), tmp_path / "ranks", CPU)


def test_a_rank_whose_peer_ends_while_they_connect_says_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gloo says where a peer ended while it connected; that moment cannot be chosen from outside."""
    reason = (
        "Gloo connectFullMesh failed with [/source/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:47804. This is typically caused by a remote worker crashing. Check the logs. GLHF!"
    )

    def connect(self: Communicator, store: object) -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(Communicator, "_connect_gloo", connect)
    with pytest.raises(EngineDead) as raised:
        Communicator(Shard(0, 2), tmp_path / "ranks", CPU)
    assert str(raised.value) == (
        "rank 0 cannot connect to the other ranks: Gloo connectFullMesh failed with Connection closed by peer "
        "[127.0.0.1]:47804"
    )


def test_a_rank_stops_connecting_when_another_is_known_to_be_lost(tmp_path: Path) -> None:
    checks: list[None] = []

    def check() -> None:
        checks.append(None)
        if len(checks) == 3:
            raise EngineDead("rank 1 is lost")

    with pytest.raises(EngineDead, match="rank 1 is lost"):
        Communicator(Shard(0, 2), tmp_path / "ranks", CPU, check)
    (tmp_path / "ranks").unlink()  # then the thread that connects ends, too
    wait_until(lambda: all(thread.name != "chairlift-connect" for thread in threading.enumerate()))


def test_ranks_that_check_connect(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda rank: Communicator(Shard(rank, 2), tmp_path / "ranks", CPU, lambda: None), (0, 1)))
        assert list(pool.map(lambda one: one.minimum(one.shard.rank + 3), made)) == [3, 3]


def test_a_rank_waits_longer_for_others_that_load_than_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chairlift.model.backends.communicator.STEP_SECONDS", 0.2)
    has_given_up = threading.Event()

    def run(communicator: Communicator) -> None:
        if communicator.shard.rank:
            time.sleep(1.0)  # as if its weights took longer
            assert communicator.minimum(2) == 1
            assert has_given_up.wait(30)
            return
        assert communicator.minimum(1) == 1
        with pytest.raises(EngineDead, match="rank 0 lost the other ranks in a collective"):
            communicator.gather_columns(torch.ones(1, 2))
        has_given_up.set()

    run_ranks(2, run)
