"""A rank's process, as a small script in place of a rank: its reports, its end and its pipe."""

import threading
from queue import SimpleQueue

import pytest

from chairlift.core.errors import EngineDead
from chairlift.model.distributed import rank_process
from chairlift.model.distributed.frames import LENGTH_BYTES
from chairlift.model.distributed.rank_messages import Collected, FromRank, Started, encode
from chairlift.model.distributed.rank_process import RankProcess
from support_process import has_ended, wait_until
from support_ranks import start_messages

READ = f"import os; os.write(1, bytes.fromhex({(encode(Started()) + encode(Collected(1, 5))).hex()!r})); "
REPORTS = READ + "data = 1\nwhile data: data = os.read(0, 65536)"
EXITS = READ + "os._exit(7)"
GARBAGE = f"import os, time; os.write(1, (3).to_bytes({LENGTH_BYTES}, 'big') + b'xyz'); time.sleep(3600)"
SLEEPS = READ + "import time; time.sleep(3600)"


@pytest.fixture
def reports() -> "SimpleQueue[tuple[int, FromRank | str]]":
    return SimpleQueue()


def start(script: str, reports: "SimpleQueue[tuple[int, FromRank | str]]") -> RankProcess:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_process, "COMMAND", ("-c", script))
        return RankProcess(
            start_messages(2)[0],
            lambda rank, message: reports.put((rank, message)),
            lambda rank, how: reports.put((rank, how)),
        )


def test_reports_arrive_and_the_process_ends_with_its_pipe(
    reports: "SimpleQueue[tuple[int, FromRank | str]]",
) -> None:
    process = start(REPORTS, reports)
    assert [reports.get(timeout=30) for _ in range(2)] == [(1, Started()), (1, Collected(1, 5))]
    process.close()
    assert reports.get(timeout=30) == (1, f"process {process.pid} ended with exit code 0")
    assert has_ended(process.pid)
    process.close()
    process.send(b"too late")


@pytest.mark.parametrize(
    ("script", "kills", "how"),
    [(EXITS, False, "exit code 7"), (SLEEPS, True, "was killed, probably for lack of memory; lower --max-memory")],
)
def test_the_way_in_which_a_process_ends_is_reported(
    script: str, kills: bool, how: str, reports: "SimpleQueue[tuple[int, FromRank | str]]"
) -> None:
    process = start(script, reports)
    assert [reports.get(timeout=30)[1] for _ in range(2)] == [Started(), Collected(1, 5)]
    if kills:
        process.kill()
    end = reports.get(timeout=30)[1]
    assert isinstance(end, str) and end.endswith(how)
    process.close()


def test_a_process_that_ignores_its_pipe_is_killed(
    reports: "SimpleQueue[tuple[int, FromRank | str]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_process, "EXIT_SECONDS", 0.2)
    process = start(SLEEPS, reports)
    process.close()
    wait_until(lambda: has_ended(process.pid))


def test_a_process_that_does_not_read_is_an_error(
    reports: "SimpleQueue[tuple[int, FromRank | str]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(SLEEPS, reports)
    monkeypatch.setattr(rank_process, "SEND_SECONDS", 0.1)
    monkeypatch.setattr(rank_process, "EXIT_SECONDS", 0.2)
    with pytest.raises(EngineDead, match="has not read its messages"):
        process.send(bytes(1_000_000))
    process.close()
    assert threading.active_count() < 50


def test_a_report_that_cannot_be_read_is_an_end(
    reports: "SimpleQueue[tuple[int, FromRank | str]]", caplog: pytest.LogCaptureFixture
) -> None:
    process = start(GARBAGE, reports)
    rank, end = reports.get(timeout=30)
    assert rank == 1 and isinstance(end, str) and "sent a report that cannot be read" in end
    process.kill()
    process.close()
