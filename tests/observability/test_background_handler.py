"""BackgroundHandler: logging never waits, dropped lines are reported, and each line keeps its request id."""

import io
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.observability.background_handler import BackgroundHandler
from chairlift.observability.logging import LogConfig, configure, current_id, use_background_writer

PATIENCE = 30.0


class Stuck(logging.Handler):
    """Writes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.called = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.called.set()
        self.free.wait(PATIENCE)
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.Logger("some.log")
    yield logger
    for handler in logger.handlers:
        handler.close()


def wait_for(handler: Stuck, count: int) -> None:
    end = time.monotonic() + PATIENCE
    while len(handler.lines) < count:
        assert time.monotonic() < end, handler.lines
        time.sleep(0.005)


def test_who_logs_does_not_wait_and_what_has_no_room_is_counted(log: logging.Logger) -> None:
    stuck = Stuck()
    log.addHandler(BackgroundHandler([stuck], max_lines=10))
    log.warning("line 0")
    assert stuck.called.wait(PATIENCE)  # the thread holds the first line, and the queue is empty
    for number in range(1, 100):
        log.warning("line %d", number)
    stuck.free.set()
    wait_for(stuck, 12)  # the report comes before the line that is written next
    log.warning("after")
    wait_for(stuck, 13)
    report = "89 lines were dropped: they could not be written in time"
    assert stuck.lines == ["line 0", report, *(f"line {number}" for number in range(1, 11)), "after"]


def test_each_writer_has_its_level(log: logging.Logger) -> None:
    quiet, loud = Stuck(), Stuck()
    quiet.setLevel(logging.ERROR)
    for each in (quiet, loud):
        each.free.set()
    log.addHandler(BackgroundHandler([quiet, loud]))
    log.warning("a")
    log.error("b")
    wait_for(loud, 2)
    assert quiet.lines == ["b"] and loud.lines == ["a", "b"]


def test_a_line_is_what_it_was_when_it_was_logged(log: logging.Logger) -> None:
    stuck, values = Stuck(), [1]
    log.addHandler(BackgroundHandler([stuck]))
    log.warning("values %s", values)
    values.append(2)
    stuck.free.set()
    wait_for(stuck, 1)
    assert stuck.lines == ["values [1]"]


def test_closing_writes_what_is_there_and_does_not_wait_for_a_stuck_writer(log: logging.Logger) -> None:
    ready, stuck = Stuck(), Stuck()
    ready.free.set()
    for handler in (ready, stuck):
        background = BackgroundHandler([handler])
        log.handlers[:] = [background]
        log.warning("last")
        background.close()
    assert ready.lines == ["last"] and stuck.lines == []
    stuck.free.set()


@pytest.mark.parametrize("form", ["human", "json"])
def test_a_line_keeps_the_id_of_its_request(form: str) -> None:
    stream = io.StringIO()
    configure(LogConfig(form=form, detailed=True), stream)
    use_background_writer()
    logger = logging.getLogger("chairlift.some")
    token = current_id.set("req-7")
    logger.warning("within")
    current_id.reset(token)
    logger.warning("outside")
    logging.getLogger("chairlift").handlers[0].close()
    within, outside = stream.getvalue().splitlines()
    assert "req-7" in within and "req-7" not in outside


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
def test_a_full_disk_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    os.symlink("/dev/full", file)
    configure(LogConfig(file=str(file), stream_level=logging.ERROR, max_bytes=0), io.StringIO())
    for _ in range(5):
        logging.getLogger("chairlift.some").warning("x" * 10_000)
    stderr = capsys.readouterr().err
    assert stderr.count("cannot write the log file") == 1 and "no space left" in stderr and "Traceback" not in stderr
