"""BatchRecorder: rows, steps and block map are those of the scheduler."""

from random import Random

import pytest

from chairlift.core.clock import FakeClock
from chairlift.engine import batch_recorder
from chairlift.engine.batch_recorder import UNREAD_SECONDS, BatchRecorder, with_compiling_requests
from chairlift.engine.batch_snapshot import CACHED, COMPILING, FREE, HELD, SHARED, WITHHELD, BatchSnapshot, SequenceRow
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.state_snapshot import scheduler_state
from support_engine import EngineHarness, make_request, make_result, make_scheduler


def snapshot_of(scheduler: Scheduler, now: float = 0.0) -> BatchSnapshot:
    return BatchRecorder().snapshot(scheduler, now)


def row_of(snapshot: BatchSnapshot, request_id: str, choice: int = 0) -> SequenceRow:
    (row,) = [row for row in snapshot.rows if (row.request_id, row.choice) == (request_id, choice)]
    return row


def cells(snapshot: BatchSnapshot) -> list[int]:
    """Return the block map cell by cell."""
    runs = snapshot.block_map
    return [value for value, length in zip(runs[::2], runs[1::2], strict=True) for _ in range(length)]


def step(scheduler: Scheduler, now: float, recorder: BatchRecorder | None = None) -> None:
    """Run a step, which the recorder records."""
    plan = scheduler.schedule(now)
    assert plan is not None
    in_flight = scheduler.in_flight_steps[0]
    scheduler.commit(make_result(plan), now)
    if recorder is not None:
        recorder.record(in_flight, now, now + 0.5)


def test_rows_have_the_progress_of_running_and_waiting_sequences() -> None:
    scheduler = make_scheduler(max_batch_tokens=8, max_chunk_tokens=8, max_running_requests=1)
    scheduler.add_request(make_request("a", 12, 5, tenant="alice", priority=3), 1.0)
    scheduler.add_request(make_request("b", [9] * 6, 9), 2.0)
    step(scheduler, 2.0)
    snapshot = snapshot_of(scheduler, 4.0)
    assert [row.request_id for row in snapshot.rows] == ["a", "b"] and snapshot.num_hidden_rows == 0
    assert row_of(snapshot, "a")._asdict() == {
        "key": 0, "request_id": "a", "choice": 0, "tenant": "alice", "state": "prefill", "wait_reason": "",
        "priority": 3, "prompt_tokens": 12, "cached_tokens": 0, "computed_tokens": 8, "output_tokens": 0,
        "max_output_tokens": 5, "num_blocks": 2, "num_cached_blocks": 0, "num_preemptions": 0, "age_seconds": 3.0,
        "wait_seconds": 1.0, "confirmed_drafts": 0, "rejected_drafts": 0,
    }  # fmt: skip
    waits = row_of(snapshot, "b")
    assert (waits.state, waits.wait_reason, waits.num_blocks) == ("waiting", "running_limit", 0)
    assert (waits.age_seconds, waits.wait_seconds) == (2.0, 2.0)
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.waiting_tokens) == (1, 1, 6)
    assert (snapshot.max_running_requests, snapshot.max_batch_tokens) == (1, 8)
    step(scheduler, 5.0)
    decoding = row_of(snapshot_of(scheduler, 5.0), "a")
    assert (decoding.state, decoding.computed_tokens, decoding.output_tokens) == ("decode", 12, 1)


def test_a_cached_prefix_and_a_preemption_are_in_the_row() -> None:
    scheduler = make_scheduler(num_blocks=20)
    scheduler.add_request(make_request("a", 9, 1), 0.0)
    step(scheduler, 0.0)
    scheduler.add_request(make_request("b", 10, 9), 1.0)
    step(scheduler, 1.0)
    cached = row_of(snapshot_of(scheduler, 1.0), "b")
    assert (cached.cached_tokens, cached.num_cached_blocks, cached.num_blocks) == (8, 2, 3)
    scheduler.table.preempt(scheduler.sequences["b"], 2.0)
    preempted = row_of(snapshot_of(scheduler, 5.0), "b")
    assert (preempted.state, preempted.num_preemptions, preempted.num_blocks) == ("preempted", 1, 0)
    assert preempted.wait_seconds == 3.0


def test_choices_that_wait_for_their_prompt_have_rows() -> None:
    scheduler = make_scheduler(max_batch_tokens=8, max_chunk_tokens=4)
    scheduler.add_request(make_request("a", 16, 5, n=3), 0.0)
    step(scheduler, 0.0)
    snapshot = snapshot_of(scheduler)
    assert [(row.choice, row.state) for row in snapshot.rows] == [(0, "prefill"), (1, "waiting"), (2, "waiting")]


def test_rows_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_recorder, "MAX_ROWS", 3)
    scheduler = make_scheduler(max_running_requests=2)
    for number in range(9):
        scheduler.add_request(make_request(f"r{number}", [number + 1] * 5), 0.0)
    step(scheduler, 0.0)
    snapshot = snapshot_of(scheduler)
    assert [row.request_id for row in snapshot.rows] == ["r0", "r1", "r2"] and snapshot.num_hidden_rows == 6
    more = with_compiling_requests(snapshot, [(0, make_request("compiling", 4), 0.5)])
    assert (more.num_hidden_rows, more.num_waiting, len(more.rows)) == (7, 8, 3)


def test_requests_whose_grammar_is_compiled_wait_for_it() -> None:
    snapshot = snapshot_of(make_scheduler())
    assert with_compiling_requests(snapshot, []) is snapshot
    compiling = [(0, make_request("a", 4, tenant="t"), 0.254), (5, make_request("b", 4), 0.1)]
    row, other = with_compiling_requests(snapshot, compiling).rows
    assert (row.request_id, row.state, row.wait_reason) == ("a", "waiting", "grammar")
    assert (row.tenant, row.prompt_tokens, row.wait_seconds, row.age_seconds) == ("t", 4, 0.25, 0.25)
    assert (row.key, other.key) == (COMPILING, COMPILING - 5)
    assert min(FREE, CACHED, WITHHELD, SHARED, HELD) > COMPILING, "a row looks like a state of blocks"


def test_the_last_steps_say_what_each_row_got() -> None:
    scheduler, recorder = make_scheduler(max_batch_tokens=8, max_chunk_tokens=6), BatchRecorder()
    scheduler.add_request(make_request("a", 3, 50), 0.0)
    step(scheduler, 0.0, recorder)
    scheduler.add_request(make_request("b", [9] * 14, 50), 0.0)
    for second in (1, 2, 3):
        step(scheduler, float(second), recorder)
    steps = recorder.snapshot(scheduler, 9.0).recent_steps
    assert [(each.prefills, each.decodes) for each in steps] == [
        ([(0, 3)], []), ([(1, 6)], [0]), ([(1, 6)], [0]), ([(1, 2)], [0]),
    ]  # fmt: skip
    assert [(each.step_id, each.num_tokens, each.duration_ms) for each in steps][:2] == [(0, 3, 500.0), (1, 7, 500.0)]
    for second in range(4, 40):
        step(scheduler, float(second), recorder)
    steps = recorder.snapshot(scheduler, 50.0).recent_steps
    assert len(steps) == batch_recorder.MAX_STEPS and steps[-1].decodes == [0, 1] and steps[-1].step_id == 39


def test_rows_with_drafts_are_decodes_and_a_sequence_has_their_numbers() -> None:
    harness, recorder = EngineHarness(FakeConfig(vocab_size=200, num_blocks=64, block_size=4)), BatchRecorder()
    harness.use_drafter(Random(3), wrong=0.4, max_drafts=4)
    harness.submit(make_request("a", 9, 50), make_request("b", 4, 50))
    scheduler, num_rows_with_drafts = harness.scheduler, 0
    while scheduler.counters.draft_tokens < 12:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        in_flight = scheduler.in_flight_steps[0]
        harness.loop.launch(plan, 0.0)
        harness.loop.collect()
        num_rows_with_drafts += sum(in_flight.num_drafts_of(row) > 0 for row in range(plan.num_rows))
        recorder.record(in_flight, 0.0, 1.0)
        last = recorder.snapshot(scheduler, 1.0).recent_steps[-1]
        is_first = scheduler.counters.steps == 1
        assert (last.prefills, sorted(last.decodes)) == (([(0, 9), (1, 4)], []) if is_first else ([], [0, 1]))
    assert num_rows_with_drafts == scheduler.counters.drafts > 0
    rows = recorder.snapshot(scheduler, 1.0).rows
    confirmed, rejected = (sum(row.confirmed_drafts for row in rows), sum(row.rejected_drafts for row in rows))
    assert confirmed == scheduler.counters.confirmed_draft_tokens > 0
    assert confirmed + rejected == scheduler.counters.draft_tokens
    states = scheduler_state(scheduler, 1.0)["sequences"]
    drafts = [(each["confirmed_drafts"], each["rejected_drafts"]) for each in states]
    assert drafts == [(row.confirmed_drafts, row.rejected_drafts) for row in rows]


def test_a_step_in_flight_with_another_counts_from_the_end_of_that_one() -> None:
    scheduler, recorder = make_scheduler(), BatchRecorder()
    scheduler.add_request(make_request("a", 3, 50), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    in_flight = scheduler.in_flight_steps[0]
    recorder.record(in_flight, 10.0, 12.0)
    recorder.record(in_flight, 11.0, 13.5)
    steps = recorder.snapshot(scheduler, 0.0).recent_steps
    assert [each.duration_ms for each in steps] == [2000.0, 1500.0]


def test_the_block_map_has_every_block_and_its_holder() -> None:
    scheduler = make_scheduler(num_blocks=12)
    scheduler.add_request(make_request("done", 9, 1), 0.0)
    step(scheduler, 0.0)
    scheduler.add_request(make_request("a", 10, 9), 0.0)
    scheduler.add_request(make_request("b", [*range(1, 9), 50, 51], 9), 0.0)
    step(scheduler, 0.0)
    scheduler.cache.pool.set_limit(11)
    snapshot = snapshot_of(scheduler)
    shown = cells(snapshot)
    tables = {name: scheduler.sequences[name].table for name in ("a", "b")}
    held = {name: [block for _, _, block in table.held()] for name, table in tables.items() if table is not None}
    assert set(held["a"]) & set(held["b"]), "the prefix is shared"
    for block, value in enumerate(shown):
        holders = [row_of(snapshot, name).key for name, blocks in held.items() if block in blocks]
        state = FREE if block != 11 else WITHHELD
        assert value == (SHARED if len(holders) == 2 else holders[0] if holders else state), block
    assert (snapshot.blocks_per_cell, len(shown)) == (1, 12)
    assert (snapshot.withheld_blocks, snapshot.free_blocks) == (1, shown.count(FREE))
    parts = snapshot.free_blocks, snapshot.cached_blocks, snapshot.held_blocks, snapshot.withheld_blocks
    assert sum(parts) == snapshot.total_blocks == 12
    for name in ("a", "b"):
        scheduler.abort(name, 0.0)
    after = cells(snapshot_of(scheduler))
    assert after.count(CACHED) == snapshot_of(scheduler).cached_blocks > 0 and SHARED not in after


def test_a_map_of_a_large_pool_shows_every_nth_block_and_is_kept_for_a_while() -> None:
    scheduler, recorder = make_scheduler(num_blocks=4001), BatchRecorder()
    scheduler.add_request(make_request("a", 40, 9), 0.0)
    step(scheduler, 0.0)
    snapshot = recorder.snapshot(scheduler, 10.0)
    assert snapshot.blocks_per_cell == 3 and len(cells(snapshot)) == 1334
    table = scheduler.sequences["a"].table
    assert table is not None
    assert cells(snapshot).count(0) == sum(1 for _, _, block in table.held() if block % 3 == 0) > 0
    scheduler.abort("a", 0.0)
    assert recorder.snapshot(scheduler, 10.4).block_map is snapshot.block_map
    assert 0 not in cells(recorder.snapshot(scheduler, 10.5))


def test_a_map_that_takes_long_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    num_maps, seconds = 0, FakeClock()
    make_map = batch_recorder._block_map

    def slow_map(scheduler: Scheduler, stride: int) -> list[int]:
        nonlocal num_maps
        num_maps += 1
        seconds.advance(0.04)
        return make_map(scheduler, stride)

    monkeypatch.setattr(batch_recorder, "_block_map", slow_map)
    scheduler, recorder = make_scheduler(), BatchRecorder(seconds.now)
    for tenth in range(801):  # snapshots of 80 seconds
        recorder.snapshot(scheduler, tenth / 10)
    assert num_maps == 21, "the maps take more than 1 % of a core"


def test_a_map_of_many_held_blocks_names_no_rows_and_visits_no_block_table(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(num_blocks=40)
    scheduler.add_request(make_request("a", 40, 9), 0.0)
    scheduler.add_request(make_request("b", 8, 9, n=2), 0.0)
    step(scheduler, 0.0)
    step(scheduler, 1.0)
    tables = [table for sequence in scheduler.running.values() if (table := sequence.table) is not None]
    num_held = sum(table.num_held for table in tables)
    monkeypatch.setattr(batch_recorder, "MAX_NAMED_BLOCKS", num_held)
    named = cells(snapshot_of(scheduler))
    assert {0, 1, SHARED} <= set(named) and HELD not in named
    monkeypatch.setattr(batch_recorder, "MAX_NAMED_BLOCKS", num_held - 1)
    monkeypatch.setattr(type(tables[0]), "held", lambda table: pytest.fail("a block table is read"))
    assert cells(snapshot_of(scheduler)) == [HELD if value >= 0 else value for value in named]


def test_the_engine_records_only_while_snapshots_are_read() -> None:
    harness = EngineHarness(FakeConfig(vocab_size=200, num_blocks=64, block_size=4))
    loop, clock = harness.loop, harness.clock
    assert isinstance(clock, FakeClock)
    harness.submit(make_request("a", 10, 90))
    harness.step(3)
    assert not loop.is_recording
    assert loop.batch_snapshot().recent_steps == [] and loop.is_recording
    harness.step(2)
    steps = loop.batch_snapshot().recent_steps
    assert [each.decodes for each in steps] == [[0], [0]] and all(each.duration_ms > 0 for each in steps)
    clock.advance(UNREAD_SECONDS)
    harness.step()
    assert loop.is_recording
    clock.advance(0.1)
    harness.step()
    assert not loop.is_recording
    harness.drain()
