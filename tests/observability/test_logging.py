"""Logging: one human-readable line or one JSON object per record, and rotating files."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chairlift.observability.logging import (
    FORMATS,
    ROOT,
    LogConfig,
    configure,
    current_id,
    current_trace_id,
    recent_lines,
    set_levels,
    use_background_writer,
)


def formatted(form: str, message: str, *arguments: Any, **more: Any) -> str:
    stream = io.StringIO()
    configure(LogConfig(form=form, detailed=True), stream)
    logging.getLogger("chairlift.engine.engine_loop").warning(message, *arguments, **more)
    return stream.getvalue()


def raised(error: Exception) -> Exception:
    """Return the error with a traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_line_for_people_has_time_level_and_logger() -> None:
    line = formatted("human", "step %d failed", 7)
    assert line[:2] == "20" and line.endswith(" WARNING chairlift.engine.engine_loop: step 7 failed\n")


def test_without_details_a_line_is_the_message_alone() -> None:
    stream = io.StringIO()
    configure(LogConfig(), stream)
    logging.getLogger("chairlift.x").warning("hello")
    assert stream.getvalue() == "chairlift: hello\n"


def test_a_json_line_is_one_object_with_stable_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)  # ray's adds an attribute, once imported
    (line,) = formatted("json", "step %d\nfailed", 7, extra={"request_id": "a", "size": Path("x")}).splitlines()
    result = json.loads(line)
    assert result.pop("time").endswith("+00:00") and result.pop("process") > 0
    assert result == {
        "level": "warning", "logger": "chairlift.engine.engine_loop", "message": "step 7\nfailed",
        "thread": "MainThread",
        "request_id": "a", "size": "x",
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_logged_cannot_begin_a_line_of_its_own(form: str) -> None:
    text = formatted(form, "id %s", "x\n2026 ERROR root: the disk is on fire\r\x1b[2J")
    assert text.count("\n") == 1 and "\x1b" not in text and "\r" not in text


@pytest.mark.parametrize("form", FORMATS)
def test_no_password_of_a_url_is_written(form: str) -> None:
    error, more = raised(OSError("http://u:secret@h:1 refused")), {"url": "http://u:secret@h:2"}
    text = formatted(form, "no spans for %s", "https://u:secret@h/v1", exc_info=error, extra=more)
    assert "secret" not in text and "https://***@h/v1" in text and "http://***@h:1 refused" in text
    if form == "json":
        assert json.loads(text)["url"] == "http://***@h:2"


@pytest.mark.parametrize("form", FORMATS)
def test_a_traceback_comes_with_it(form: str) -> None:
    text = formatted(form, "it failed", exc_info=raised(ZeroDivisionError("deep inside")))
    assert "Traceback" in text and "ZeroDivisionError: deep inside" in text
    if form == "json":
        assert "deep inside" in json.loads(text)["error"]


def test_the_file_has_details_and_its_own_level(tmp_path: Path) -> None:
    stream = io.StringIO()
    config = LogConfig(level=logging.INFO, stream_level=logging.ERROR, file=str(tmp_path / "log"))
    configure(config, stream)
    for level in (logging.DEBUG, logging.INFO, logging.ERROR):
        logging.getLogger("chairlift.x").log(level, "é %d", level)
    assert stream.getvalue() == "chairlift: é 40\n"
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert [line.partition(" chairlift.x: ")[2] for line in lines] == ["é 20", "é 40"]


def test_the_oldest_file_goes_when_there_are_enough(tmp_path: Path) -> None:
    configure(LogConfig(file=str(tmp_path / "log"), max_bytes=300, backups=2), io.StringIO())
    for number in range(60):
        logging.getLogger("chairlift.x").warning("number %d", number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log", "log.1", "log.2"]
    kept = [line.rpartition(" ")[2] for file in reversed(files) for line in file.read_text().splitlines()]
    assert kept == [str(number) for number in range(60 - len(kept), 60)] and len(kept) < 60


def test_a_second_call_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(LogConfig(file=str(tmp_path / "log")), first)
    (_, was, _) = logging.getLogger(ROOT).handlers
    configure(LogConfig(), second)
    logging.getLogger("chairlift.x").warning("hello")
    assert first.getvalue() == "" and second.getvalue().count("hello") == 1
    assert isinstance(was, logging.FileHandler) and was.stream is None


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure(LogConfig(), stream)
    with pytest.raises(OSError, match="No such file"):
        configure(LogConfig(file=str(tmp_path / "nowhere" / "log")), io.StringIO())
    logging.getLogger("chairlift.x").warning("still here")
    assert "still here" in stream.getvalue()


@pytest.mark.full
def test_a_library_configures_nothing() -> None:
    code = (
        "import logging\n"
        "from chairlift import LLM\n"
        "with LLM('chairlift:random', num_blocks=20) as llm: llm.generate('a', use_tqdm=False)\n"
        "for name in [name for name in logging.root.manager.loggerDict if name.startswith('chairlift')]:\n"
        "    log = logging.getLogger(name)\n"
        "    assert not log.handlers and log.level == logging.NOTSET and log.propagate, name\n"
        "assert not logging.root.handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("form", FORMATS)
def test_a_traceback_cannot_begin_a_line_of_its_own(form: str) -> None:
    error = raised(ValueError("x\n2026 ERROR chairlift.engine.engine_loop: the disk is on fire\r\x1b[2J"))
    text = formatted(form, "it failed", exc_info=error)
    assert "\x1b" not in text and "\r" not in text and "on fire" in text
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


def test_a_brief_line_names_the_error_and_the_file_has_the_traceback(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure(LogConfig(file=str(tmp_path / "log")), stream)
    error = raised(ZeroDivisionError("deep inside"))
    logging.getLogger("chairlift.x").error("step %d failed", 7, exc_info=error)
    assert stream.getvalue() == "chairlift: step 7 failed (ZeroDivisionError: deep inside; -v shows where)\n"
    assert "Traceback" in (tmp_path / "log").read_text()


def test_the_file_has_the_traceback_as_its_own_form_writes_it(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure(LogConfig(file=str(tmp_path / "log"), detailed=True), stream)
    logging.getLogger("chairlift.x").error("step failed", exc_info=raised(ZeroDivisionError("deep inside")))
    assert "Traceback" in stream.getvalue() and "Traceback" in (tmp_path / "log").read_text()


def test_a_file_that_would_grow_for_ever_in_spite_of_its_limit_is_refused() -> None:
    for numbers in ({"backups": 0}, {"backups": -1}, {"max_bytes": -1}):
        with pytest.raises(ValueError, match="log file"):
            LogConfig(**numbers)
    LogConfig(max_bytes=0, backups=0)


# -- lines of a request ----------------------------------------------------------------------------------------------


@contextmanager
def request(name: str) -> Iterator[None]:
    token = current_id.set(name)
    yield
    current_id.reset(token)


def test_a_json_line_has_the_id_of_its_request_and_outside_of_one_none() -> None:
    with request("req-7"):
        assert json.loads(formatted("json", "hello"))["request_id"] == "req-7"
        assert json.loads(formatted("json", "hello", extra={"request_id": "its own"}))["request_id"] == "its own"
    assert "request_id" not in json.loads(formatted("json", "hello"))


def test_a_detailed_line_begins_its_message_with_the_id_and_a_brief_one_does_not(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure(LogConfig(file=str(tmp_path / "log")), stream)
    with request("req-%d"):
        logging.getLogger("chairlift.x").warning("50 %s of %d", "%", 7)
        assert formatted("human", "bare %s").endswith(" WARNING chairlift.engine.engine_loop: [req-%d] bare %s\n")
    assert stream.getvalue() == "chairlift: 50 % of 7\n"
    assert (tmp_path / "log").read_text().endswith(" chairlift.x: [req-%d] 50 % of 7\n")
    assert formatted("human", "hello").endswith(" WARNING chairlift.engine.engine_loop: hello\n")


def test_a_line_has_the_id_of_a_sampled_trace_also_when_another_thread_writes_it() -> None:
    token = current_trace_id.set("4bf9")
    with request("req-7"):
        assert json.loads(formatted("json", "hello"))["trace_id"] == "4bf9"
        assert formatted("human", "hello").endswith(": [req-7 4bf9] hello\n")
        stream = io.StringIO()
        configure(LogConfig(form="json"), stream)
        background = use_background_writer()
        logging.getLogger("chairlift.x").warning("later")
    current_trace_id.reset(token)
    background.close()
    assert json.loads(stream.getvalue())["trace_id"] == "4bf9"
    assert "trace_id" not in json.loads(formatted("json", "hello"))


@pytest.mark.parametrize("form", FORMATS)
def test_a_traceback_comes_with_the_id(form: str) -> None:
    with request("req-7"):
        text = formatted(form, "it failed", exc_info=raised(ZeroDivisionError("deep inside")))
    assert "req-7" in text.splitlines()[0] and "ZeroDivisionError: deep inside" in text


@pytest.mark.parametrize("form", FORMATS)
def test_an_id_cannot_begin_a_line_of_its_own(form: str) -> None:
    with request("x\n2026 ERROR root: the disk is on fire\r\x1b[2J"):
        text = formatted(form, "hello")
    assert text.count("\n") == 1 and "\x1b" not in text and "\r" not in text


def messages_by_id(stream: io.StringIO) -> dict[str, set[str]]:
    """Return the messages of each request; "" stands for none."""
    by_id: dict[str, set[str]] = {}
    for line in map(json.loads, stream.getvalue().splitlines()):
        by_id.setdefault(line.get("request_id", ""), set()).add(line["message"])
    return by_id


def test_the_lines_of_two_tasks_do_not_mix() -> None:
    stream, log = io.StringIO(), logging.getLogger("chairlift.x")
    configure(LogConfig(form="json"), stream)

    async def serve(name: str, meet: asyncio.Barrier) -> None:
        current_id.set(name)
        for turn in range(3):
            await meet.wait()
            log.warning("%s in turn %d", name, turn)
            await asyncio.to_thread(log.warning, "%s in a thread", name)

    async def scenario() -> None:
        meet = asyncio.Barrier(2)
        await asyncio.gather(serve("a", meet), serve("b", meet))
        log.warning("outside")

    asyncio.run(scenario())
    assert messages_by_id(stream) == {
        name: {f"{name} in a thread", *(f"{name} in turn {turn}" for turn in range(3))} for name in ("a", "b")
    } | {"": {"outside"}}


def test_the_lines_of_two_threads_do_not_mix() -> None:
    stream, log, meet = io.StringIO(), logging.getLogger("chairlift.x"), threading.Barrier(2)
    configure(LogConfig(form="json"), stream)

    def serve(name: str) -> None:
        log.warning("%s before", name)
        current_id.set(name)
        meet.wait(30)
        log.warning("%s inside", name)

    with request("of the one who starts them"):
        threads = [threading.Thread(target=serve, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert messages_by_id(stream) == {"": {"a before", "b before"}, "a": {"a inside"}, "b": {"b inside"}}


@pytest.mark.parametrize("in_background", [False, True])
def test_levels_change_while_lines_go_where_they_went(tmp_path: Path, in_background: bool) -> None:
    stream, file = io.StringIO(), tmp_path / "log"
    log = logging.getLogger("chairlift.somewhere")
    configure(LogConfig(file=str(file)), stream)
    background = use_background_writer() if in_background else None
    log.info("before")
    set_levels(LogConfig(level=logging.INFO, stream_level=logging.ERROR, file=str(file)))
    log.info("between")
    log.error("loud")
    if background is not None:
        background.close()
    assert [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()] == ["loud"]
    assert [line.rpartition(" ")[2] for line in file.read_text().splitlines()] == ["between", "loud"]
    set_levels(LogConfig(level=logging.ERROR, stream_level=logging.ERROR, file=str(file)))
    assert not log.isEnabledFor(logging.WARNING)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("chairlift.x", logging.INFO, "", 0, message, None, None)


def test_a_record_has_its_level_its_logger_its_request_and_its_traceback() -> None:
    configure(LogConfig(level=logging.INFO), io.StringIO())
    token = current_id.set("req-1")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("chairlift.x").exception("it failed with %d", 7)
    finally:
        current_id.reset(token)
    (line,) = recent_lines()
    assert (line["level"], line["logger"], line["message"], line["request_id"]) == (
        "error", "chairlift.x", "it failed with 7", "req-1",
    )  # fmt: skip
    assert line["error"].endswith("ValueError: broken") and line["time"] > 0


def test_records_are_kept_behind_the_background_writer_and_after_a_change_of_levels() -> None:
    configure(LogConfig(level=logging.WARNING), io.StringIO())
    background = use_background_writer()
    set_levels(LogConfig(level=logging.INFO, stream_level=logging.INFO))
    logging.getLogger("chairlift.x").info("one")
    set_levels(LogConfig(level=logging.ERROR, stream_level=logging.ERROR))
    logging.getLogger("chairlift.x").warning("below the level")
    background.close()
    assert [line["message"] for line in recent_lines()] == ["one"]


def test_a_log_that_is_not_configured_has_no_lines() -> None:
    logging.getLogger("chairlift").handlers[:] = []
    assert recent_lines() == []


def test_no_line_has_the_password_of_a_url() -> None:
    configure(LogConfig(level=logging.INFO), io.StringIO())
    try:
        raise ValueError("http://u:secret@h")
    except ValueError:
        logging.getLogger("chairlift.x").exception("no answer from %s", "http://u:secret@h/a")
    (line,) = recent_lines()
    assert line["message"] == "no answer from http://***@h/a" and "secret" not in line["error"]
