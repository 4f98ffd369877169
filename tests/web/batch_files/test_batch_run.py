"""run_batch_file: concurrency, retries, errors, interruptions and full disks, with a scripted sender."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.batch_files import batch_run
from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import (
    BatchAttempt,
    BatchProgress,
    BatchResponse,
    output_entry,
    run_batch_file,
    unlimited_slot,
)
from chairlift.web.batch_files.output_journal import OutputJournal

LINES = [BatchLine(number, f"r{number}", "/v1/completions", b"{}") for number in range(50)]
IDS = [line.custom_id for line in LINES]


class ScriptedSender:
    """Answers each request after a moment; `fails` has the statuses of a request's first answers."""

    def __init__(self, fails: dict[str, list[int]] | None = None, seconds: float = 0.0) -> None:
        self.fails, self.seconds = fails or {}, seconds
        self.sent: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0

    async def __call__(self, line: BatchLine) -> BatchResponse:
        self.sent[line.custom_id] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        script = self.fails.get(line.custom_id, [])
        status = script.pop(0) if script else 200
        return BatchResponse(status, "id", {"usage": {"total_tokens": 3}} if status == 200 else "no", 0.0)


def run(path: Path, sender: Any, **options: Any) -> BatchProgress:
    async def scenario() -> BatchProgress:
        with OutputJournal(path, IDS) as journal:
            return await run_batch_file(
                LINES, len(LINES), journal, sender, **{"max_concurrent": 8, "max_retries": 3} | options
            )

    return asyncio.run(asyncio.wait_for(scenario(), 20))


def entries(path: Path) -> dict[str, Any]:
    return {entry["custom_id"]: entry for entry in map(json.loads, path.read_text().splitlines())}


def test_every_request_has_one_response_and_few_are_in_flight(tmp_path: Path) -> None:
    path, sender, seen = tmp_path / "out", ScriptedSender(seconds=0.001), []
    progress = run(path, sender, on_progress=lambda each: seen.append(each.done))
    assert (progress.total, progress.done, progress.failed, progress.tokens) == (50, 50, 0, 150)
    assert sender.most_in_flight == 8 and set(sender.sent.values()) == {1} and seen == list(range(1, 51))
    assert set(entries(path)) == set(IDS) and len(path.read_text().splitlines()) == 50


@pytest.mark.parametrize("status", [0, 408, 429, 500, 502, 503, 504])
def test_what_may_succeed_later_is_sent_again(tmp_path: Path, status: int) -> None:
    sender = ScriptedSender({"r3": [status, status]})
    progress = run(tmp_path / "out", sender)
    assert sender.sent["r3"] == 3 and progress.failed == 0


def test_other_errors_and_the_last_attempt_are_the_response(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sender = ScriptedSender({"r1": [400], "r2": [503] * 9, "r3": [0] * 9})
    progress = run(path, sender)
    assert progress.failed == 3 and [sender.sent[name] for name in ("r1", "r2", "r3")] == [1, 4, 4]
    found = entries(path)
    assert found["r1"]["response"] == {"status_code": 400, "request_id": "id", "body": "no"}
    assert found["r2"]["response"]["status_code"] == 503 and found["r2"]["error"] is None
    assert found["r3"]["response"] is None and found["r3"]["error"] == {"code": "no_response", "message": "no"}


def test_pauses_between_attempts_grow_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def overloaded(line: BatchLine) -> BatchResponse:
        return BatchResponse(429, "", "", 7.0 if len(pauses) == 1 else None)

    async def scenario() -> None:
        with OutputJournal(tmp_path / "out", ["r0"]) as journal:
            await run_batch_file(LINES[:1], 1, journal, overloaded, max_concurrent=1, max_retries=9)

    monkeypatch.setattr(batch_run.asyncio, "sleep", sleep)
    asyncio.run(scenario())
    assert pauses == [0.5, 7.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out"

    async def interrupted() -> None:
        with OutputJournal(path, IDS) as journal:
            sender = ScriptedSender(seconds=0.001)
            task = asyncio.create_task(
                run_batch_file(LINES, len(LINES), journal, sender, max_concurrent=4, max_retries=0)
            )
            while len(journal.done) < 20:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert sender.in_flight == 0

    asyncio.run(interrupted())
    before = entries(path)
    assert 20 <= len(before) < 50
    sender = ScriptedSender()
    progress = run(path, sender)
    assert set(sender.sent) == set(IDS) - set(before) and progress.done == 50
    after = entries(path)
    assert len(path.read_text().splitlines()) == 50 and {name: after[name] for name in before} == before
    assert run(path, ScriptedSender({"r1": [500]})).done == 50  # nothing is left to send


def test_a_run_after_an_outage_sends_again_what_has_no_response(tmp_path: Path) -> None:
    path = tmp_path / "out"
    outage = {f"r{number}": [status] * 9 for number, status in ((3, 0), (5, 503), (7, 400))}
    assert run(path, ScriptedSender(outage)).failed == 3
    sender = ScriptedSender()
    progress = run(path, sender)
    assert set(sender.sent) == {"r3", "r5"} and (progress.done, progress.failed) == (50, 1)
    assert set(entries(path)) == set(IDS) and len(path.read_text().splitlines()) == 50


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_and_no_request_is_done(tmp_path: Path, status: int) -> None:
    sender = ScriptedSender({name: [status] * 9 for name in IDS}, seconds=0.001)
    with pytest.raises(ConfigError, match=f"refuses the key .status {status}.; set CHAIRLIFT_API_KEY"):
        run(tmp_path / "out", sender)
    assert sum(sender.sent.values()) <= 16 and entries(tmp_path / "out") == {}


def test_a_response_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = ScriptedSender(seconds=0.001)
    real = OutputJournal.append

    def append(self: OutputJournal, custom_id: str, entry: Any) -> None:
        if len(self.done) == 10:
            raise OSError("no space left on the device")
        real(self, custom_id, entry)

    monkeypatch.setattr(OutputJournal, "append", append)
    with pytest.raises(OSError, match="no space"):
        run(tmp_path / "out", sender)
    assert sender.in_flight == 0 and len(entries(tmp_path / "out")) == 10


def test_an_entry_has_openai_s_fields() -> None:
    entry = output_entry(LINES[0], BatchResponse(200, "req-1", {"a": 1}))
    assert entry.pop("id").startswith("batch_req_")
    assert entry == {
        "custom_id": "r0", "error": None, "response": {"status_code": 200, "request_id": "req-1", "body": {"a": 1}}
    }  # fmt: skip


class Slots:
    """Slots whose requests are busy after the statuses `busy`; `most` were open at once."""

    def __init__(self, busy: Collection[int] = ()) -> None:
        self.busy = busy
        self.num_slots = self.num_open = self.most = 0

    def is_busy(self, response: BatchResponse, num_attempts: int) -> bool:
        assert num_attempts >= 1
        return response.status in self.busy

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[BatchAttempt]:
        self.num_slots += 1
        self.num_open += 1
        self.most = max(self.most, self.num_open)
        yield self
        self.num_open -= 1


def test_a_request_holds_a_slot_and_none_is_waited_for_without_a_request(tmp_path: Path) -> None:
    sender, slots = ScriptedSender(seconds=0.001), Slots()
    run(tmp_path / "out", sender, slot=slots.slot)
    assert slots.num_slots == len(LINES) and set(sender.sent.values()) == {1}


def test_each_attempt_has_a_slot_of_its_own_and_no_pause_keeps_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    slots, sender = Slots(), ScriptedSender({"r0": [500] * 2, "r1": [503]})
    num_open, sleep = list[int](), asyncio.sleep

    async def counted(seconds: float) -> None:
        if seconds == 0.0 and sender.in_flight == 0:  # a pause, the retry-after of the scripted responses
            num_open.append(slots.num_open)
        await sleep(0)

    monkeypatch.setattr(batch_run.asyncio, "sleep", counted)
    run(tmp_path / "out", sender, slot=slots.slot, max_concurrent=1)
    assert slots.num_slots == len(LINES) + 3 and num_open == [0, 0, 0]


def test_busy_attempts_do_not_count_as_retries(tmp_path: Path) -> None:
    sender = ScriptedSender({"r0": [429] * 9, "r1": [500] * 9, "r2": [401] * 9})
    options = {"slot": Slots(busy=(401, 429)).slot, "refused_statuses": ()}
    progress = run(tmp_path / "out", sender, max_retries=2, **options)
    assert [sender.sent[name] for name in ("r0", "r1", "r2")] == [10, 3, 10] and progress.failed == 1


def test_a_response_that_cannot_be_written_waits_and_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    sender, num_failures, real = ScriptedSender(), 0, OutputJournal.append

    def append(self: OutputJournal, custom_id: str, entry: Any) -> None:
        if custom_id == "r7" and num_failures < 3:
            raise OSError("no space left on the device")
        real(self, custom_id, entry)

    async def on_write_error(error: OSError) -> None:
        nonlocal num_failures
        num_failures += 1

    monkeypatch.setattr(OutputJournal, "append", append)
    progress = run(tmp_path / "out", sender, on_write_error=on_write_error)
    assert progress.done == 50 and num_failures == 3 and set(sender.sent.values()) == {1}


def test_lines_are_parsed_in_a_thread_some_at_a_time(tmp_path: Path) -> None:
    threads, num_read = set[threading.Thread](), 0

    def lines() -> Iterator[BatchLine]:
        nonlocal num_read
        for line in LINES:
            threads.add(threading.current_thread())
            num_read += 1
            yield line

    async def send(line: BatchLine) -> BatchResponse:
        if line.custom_id == "r40":
            assert num_read == 40 + 1, "those with a response are left out, and few are kept in memory"
        return BatchResponse(200, "id", {})

    async def scenario() -> None:
        with OutputJournal(tmp_path / "out", IDS) as journal:
            for custom_id in IDS[:40]:
                journal.append(
                    custom_id, output_entry(LINES[0], BatchResponse(200, "id", {})) | {"custom_id": custom_id}
                )
            await run_batch_file(lines(), 50, journal, send, max_concurrent=1, max_retries=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_run, "READ_LINES", 1)
        asyncio.run(scenario())
    assert threading.current_thread() not in threads and num_read == 50


@dataclass
class ClosedSlots:
    """Lets requests begin while `is_open` is set; counts those that wait."""

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    num_waiting: int = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[BatchAttempt]:
        self.num_waiting += 1
        await self.is_open.wait()
        self.num_waiting -= 1
        async with unlimited_slot() as attempt:
            yield attempt


def test_no_slot_is_taken_while_a_request_is_read(tmp_path: Path) -> None:
    is_readable, slots = threading.Event(), ClosedSlots()

    def lines() -> Iterator[BatchLine]:
        assert is_readable.wait(20)
        yield from LINES

    async def scenario() -> None:
        with OutputJournal(tmp_path / "out", IDS) as journal, ThreadPoolExecutor(1) as executor:
            running = asyncio.create_task(
                run_batch_file(
                    lines(),
                    50,
                    journal,
                    ScriptedSender(),
                    max_concurrent=4,
                    max_retries=0,
                    slot=slots.slot,
                    executor=executor,
                )
            )
            for _ in range(20):
                await asyncio.sleep(0)
            assert slots.num_waiting == 0
            is_readable.set()
            while slots.num_waiting < 4:
                await asyncio.sleep(0)
            slots.is_open.set()
            assert (await running).done == 50

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_requests_that_wait_for_their_slots_have_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "READ_BYTES", 100)
    slots, num_read = ClosedSlots(), 0

    def lines() -> Iterator[BatchLine]:
        nonlocal num_read
        for each in LINES:
            num_read += 1
            yield replace(each, body=b"x" * 60)

    async def scenario() -> None:
        with OutputJournal(tmp_path / "out", IDS) as journal, ThreadPoolExecutor(1) as executor:
            running = asyncio.create_task(
                run_batch_file(
                    lines(),
                    50,
                    journal,
                    ScriptedSender(),
                    max_concurrent=9,
                    max_retries=0,
                    slot=slots.slot,
                    executor=executor,
                )
            )
            while slots.num_waiting < 2:
                await asyncio.sleep(0)
            for _ in range(20):  # behind whatever is being read
                await asyncio.get_running_loop().run_in_executor(executor, int)
            assert slots.num_waiting == 2 == num_read
            slots.is_open.set()
            assert (await running).done == 50

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_requests_with_a_response_are_skipped_in_bounded_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_run, "SKIPPED_LINES", 10)
    path = tmp_path / "out"
    with OutputJournal(path, IDS) as journal:
        for each in LINES[:45]:
            journal.append(each.custom_id, output_entry(each, BatchResponse(200, "", {})))

    class Counting(ThreadPoolExecutor):
        num_pieces = 0

        def submit(self, *arguments: Any, **options: Any) -> Any:
            self.num_pieces += 1
            return super().submit(*arguments, **options)

    with Counting(1) as executor:
        sender = ScriptedSender()
        assert run(path, sender, executor=executor).done == 50
        assert executor.num_pieces == 5 and set(sender.sent) == set(IDS[45:])
