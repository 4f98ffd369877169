"""Ranks of one model that are killed, stopped or hang, in each phase: the error names the rank, and nothing is left.

No limit of gloo ends these runs: only what rank 0 notices itself does.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, SamplingParams
from chairlift.core.errors import ChairliftError, EngineDead, ModelError
from chairlift.llm.builtin_models import RANDOM
from chairlift.model.backends import communicator
from chairlift.model.backends.communicator import Communicator
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.distributed import rank_process, rank_watch, tensor_parallel_runner
from chairlift.model.distributed.rank_messages import FromRank, Loading, Progress, encode
from chairlift.model.distributed.tensor_parallel_runner import TensorParallelRunner
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.weights.shard import Shard
from support_forks import TORCH_MODULES, forked_children
from support_models import save_tiny
from support_process import RecordingSink, make_request, wait_until
from support_ranks import CPU, rank_pids
from support_shares import FULL

CONFIG = RunnerConfig(dtype="float64", device="cpu", num_blocks=200, tensor_parallel_size=2, kernels="torch")
OPTIONS: dict[str, Any] = {"dtype": "float64", "device": "cpu", "kernels": "torch", "num_blocks": 200}
CYCLES = 20 if FULL else 1
KILLS = 6 if FULL else 1


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, folder, shared memory or thread is left; the limits of gloo are hours."""
    for name in ("STEP_SECONDS", "START_SECONDS"):
        monkeypatch.setattr(communicator, name, 3600.0)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    shared = set(os.listdir("/dev/shm"))
    with forked_children(TORCH_MODULES):
        yield
    assert rank_pids(os.getpid()) == []
    assert [each.name for each in folder.iterdir() if "chairlift" in each.name] == []
    assert {name for name in os.listdir("/dev/shm") if "torch" in name or "chairlift" in name} <= shared
    wait_until(lambda: not any(each.name.startswith("chairlift-rank") for each in threading.enumerate()))


def only_rank() -> int:
    (pid,) = rank_pids(os.getpid())
    return pid


def start_error(runner: TensorParallelRunner) -> ChairliftError:
    with pytest.raises(ChairliftError) as caught:
        runner.start()
    runner.stop()
    return caught.value


def use_script(monkeypatch: pytest.MonkeyPatch, *reports: FromRank) -> None:
    """Start a process instead of a rank which reports and then does nothing."""
    content = b"".join(map(encode, reports))
    script = f"import os, time; os.write(1, bytes.fromhex({content.hex()!r})); time.sleep(3600)"
    monkeypatch.setattr(rank_process, "COMMAND", ("-c", script, "rank_main"))
    monkeypatch.setattr(rank_process, "subprocess", subprocess)


def test_a_rank_that_ends_while_it_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    use_script(monkeypatch)
    monkeypatch.setattr(rank_process, "COMMAND", ("-c", "import os; os._exit(3)"))
    assert re.search(r"rank 1 of 2 is lost.* ended with exit code 3", str(start_error(TensorParallelRunner(CONFIG))))


def test_a_rank_that_is_killed_while_the_ranks_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    use_script(monkeypatch, Loading())
    checks: list[int] = []
    runner = TensorParallelRunner(CONFIG)
    check = runner._group.check

    def kill_later() -> None:
        checks.append(len(checks))
        if len(checks) == 4:
            os.kill(only_rank(), signal.SIGKILL)
        check()

    monkeypatch.setattr(runner._group, "check", kill_later)
    assert "rank 1 of 2 is lost" in str(error := start_error(runner)) and "was killed" in str(error)


def test_a_rank_that_is_stopped_while_the_ranks_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    use_script(monkeypatch, Loading(), Progress(0))
    monkeypatch.setattr(tensor_parallel_runner, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(rank_watch, "START_SILENT_SECONDS", 0.3)
    assert "rank 1 of 2 (process " in str(error := start_error(TensorParallelRunner(CONFIG)))
    assert "has not reported for" in str(error) and "the limit is 0.3 s" in str(error)


def test_a_rank_that_is_killed_while_the_ranks_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is connected, by a thread, so that no collective fails: rank 0 notices it between two parameters."""
    use_script(monkeypatch, Loading())
    other: list[Communicator] = []
    runner = TensorParallelRunner(CONFIG)

    def connect() -> None:
        wait_until(lambda: runner._folder is not None)
        assert runner._folder is not None
        other.append(Communicator(Shard(1, 2), runner._folder / tensor_parallel_runner.MEETING_FILE, CPU))

    thread = threading.Thread(target=connect)
    start = TorchRunner.start

    def kill_first(own: TorchRunner) -> Any:
        os.kill(only_rank(), signal.SIGKILL)
        wait_until(lambda: runner._group._failure is not None)
        return start(own)

    monkeypatch.setattr(TorchRunner, "start", kill_first)
    thread.start()
    assert "rank 1 of 2 is lost" in str(start_error(runner))
    thread.join()
    assert len(other) == 1


def test_a_rank_that_is_killed_in_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, warmup = TensorParallelRunner(CONFIG), TorchRunner.warmup
    runner.start()
    pid = only_rank()

    def kill_first(own: TorchRunner) -> None:
        os.kill(pid, signal.SIGKILL)
        warmup(own)

    monkeypatch.setattr(TorchRunner, "warmup", kill_first)
    with pytest.raises(EngineDead, match=f"rank 1 of 2 is lost.*process {pid} was killed"):
        runner.warmup()
    runner.stop()


def test_the_model_folder_vanishes_before_the_ranks_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny("llama", tmp_path / "model")

    def remove_first(*arguments: Any) -> Communicator:
        shutil.rmtree(folder)
        return Communicator(*arguments)

    monkeypatch.setattr(tensor_parallel_runner, "Communicator", remove_first)
    error = start_error(TensorParallelRunner(RunnerConfig(model=str(folder), device="cpu", tensor_parallel_size=2)))
    assert isinstance(error, ModelError) and str(folder) in str(error)


def fail_in_step(llm: LLM, act: Callable[[], object]) -> str:
    """Act on a rank in the middle of a request; returns the error of the request."""
    sink = RecordingSink()
    llm._service.client.submit(make_request("long", (5, 6, 7), max_tokens=900, ignore_eos=True), sink)
    sink.wait(lambda: len(sink.tokens.get("long", ())) > 3)
    act()
    error = sink.end("long").error
    assert isinstance(error, EngineDead)
    return str(error)


def test_a_rank_that_is_stopped_in_a_step(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tensor_parallel_runner, "BEAT_SECONDS", 0.1)
    with LLM(RANDOM, tensor_parallel_size=2, **OPTIONS) as llm:
        (pid,) = rank_pids(os.getpid())

        def stop_rank() -> None:
            os.kill(pid, signal.SIGSTOP)
            monkeypatch.setattr(rank_watch, "SILENT_SECONDS", 1.0)

        error = fail_in_step(llm, stop_rank)
    assert re.search(rf"rank 1 of 2 \(process {pid}\) has not reported for \d+\.\d s, the limit is 1 s", error)
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "the engine died: rank 1 of 2" in record.getMessage() and not record.exc_info


def test_a_rank_that_hangs_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel_runner, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(rank_watch, "BEHIND_SECONDS", 1.0)
    options = {**OPTIONS, "logits_processor_factories": {"hangs": "support_ranks:hangs_on_rank"}}
    with LLM(RANDOM, tensor_parallel_size=2, **options) as llm:
        (pid,) = rank_pids(os.getpid())
        params = SamplingParams(logits_processors="hangs", max_tokens=9, ignore_eos=True)
        (output,) = llm.generate(["abc"], params, use_tqdm=False)
    assert isinstance(output.error, EngineDead)
    assert re.search(rf"rank 1 of 2 \(process {pid}\) has hung for \d+\.\d s in a step", str(output.error))


@pytest.mark.parametrize("number", range(KILLS))
def test_the_killed_one_of_three_ranks_is_blamed(number: int, tmp_path: Path) -> None:
    """Not rank 1, whose collective fails; with two steps in flight and without."""
    changes = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    folder = save_tiny("llama", tmp_path / "model", **changes)
    with LLM(str(folder), tensor_parallel_size=3, overlap=number % 2 == 0, max_model_len=1000, **OPTIONS) as llm:
        last = max(rank_pids(os.getpid()), key=lambda pid: (started_at(pid), pid))
        error = fail_in_step(llm, lambda: os.kill(last, signal.SIGKILL))
    assert f"rank 2 of 3 is lost, and the engine with it: process {last} was killed" in error


def started_at(pid: int) -> int:
    """Return when a process was started, in ticks of the system."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_starts_and_stops_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rank is stopped when it shall end, and is killed."""
    num_files = None
    for cycle in range(CYCLES):
        runner = TensorParallelRunner(CONFIG)
        runner.start()
        if cycle == CYCLES - 1:
            monkeypatch.setattr(rank_process, "EXIT_SECONDS", 0.2)
            os.kill(only_rank(), signal.SIGSTOP)
        runner.stop()
        assert rank_pids(os.getpid()) == []
        wait_until(lambda: not any(each.name.startswith("chairlift-rank") for each in threading.enumerate()))
        open_files = len(os.listdir("/proc/self/fd"))
        num_files = num_files or open_files
        assert open_files == num_files, "files stay open"
