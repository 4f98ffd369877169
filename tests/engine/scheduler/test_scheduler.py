"""Scheduler: its guarantees one by one, most of them bugs of other engines (PITFALLS 1-6, 11, 12, 17)."""

from dataclasses import replace
from typing import Any

import pytest

from chairlift.core.adapter_version import AdapterVersion
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    QueueFull,
    RequestTimeout,
    RequestTooLarge,
    TokenOutOfRange,
)
from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.step_plan import LAST_SAMPLED
from support_engine import (
    make_request,
    make_result,
    make_scheduler,
    record_released_tables,
    rows_of,
    run_step,
    run_to_end,
)
from support_grammars import VOCAB_SIZE, grammar_of

# -- the prefix cache ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_prompt_that_hits_completely_still_computes_one_token(block_size: int) -> None:
    """Pitfall 1."""
    scheduler = make_scheduler(block_size=block_size)
    scheduler.add_request(make_request("a", 16, 1), 0.0)
    run_to_end(scheduler)
    scheduler.add_request(make_request("b", 16, 1), 0.0)
    plan, [output] = run_step(scheduler)
    computed = 1 if block_size == 1 else block_size
    assert plan.num_tokens == computed and plan.sample_rows.tolist() == [0]
    assert output.usage is not None and output.usage.cached_tokens == 16 - computed


def test_requests_share_cached_blocks_only_with_those_of_their_salt() -> None:
    scheduler, cached = make_scheduler(), {}
    for name, salt in {"a": "", "b": "s", "c": "t", "d": "s", "e": "", "f": "t"}.items():
        scheduler.add_request(make_request(name, 16, 1, cache_salt=salt), 0.0)
        _, [output] = run_step(scheduler)
        assert output.usage is not None
        cached[name] = output.usage.cached_tokens
    assert cached == {"a": 0, "b": 0, "c": 0, "d": 12, "e": 12, "f": 12}
    assert scheduler.cache.counts().cached == 3 * 4 and scheduler.check_integrity() == []


def test_open_requests_hold_the_same_blocks_only_with_those_of_their_salt() -> None:
    scheduler = make_scheduler()
    for name, salt in {"a": "s", "b": "t", "twin": "s"}.items():
        scheduler.add_request(make_request(name, 17, 5, cache_salt=salt), 0.0)
        run_step(scheduler)
    tables = {name: scheduler.sequences[name].table for name in ("a", "b", "twin")}
    blocks = {name: set(table.groups[0]) for name, table in tables.items() if table is not None}
    assert len(blocks["a"] & blocks["twin"]) == 4 and not blocks["b"] & (blocks["a"] | blocks["twin"])
    run_to_end(scheduler)
    assert scheduler.check_integrity() == []


def test_a_victim_hits_its_own_blocks_when_it_starts_again() -> None:
    """Pitfall 2: reference counts are right while it waits and afterwards."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, 5), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    sequence = scheduler.sequences["a"]
    scheduler.table.preempt(sequence, 0.0)
    counts = scheduler.cache.counts()
    assert (counts.held, counts.cached) == (0, 2) and scheduler.check_integrity() == []
    plan = scheduler.schedule(0.0)
    assert plan is not None and plan.start_positions.tolist() == [8] and plan.num_tokens == 4
    assert plan.new_sequences[0].token_ids == (*range(1, 11), 7, 7) and plan.new_sequences[0].num_output_tokens == 2
    assert sequence.table is not None
    assert [scheduler.cache.pool.references(block) for block in sequence.table.groups[0]] == [1, 1, 1]
    assert scheduler.check_integrity() == [] and sequence.cached_tokens == 0


def test_a_victim_and_a_twin_share_its_blocks() -> None:
    """Pitfall 2: the twin takes the victim's cached blocks, then the victim shares them."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, 5), 0.0)
    run_step(scheduler)
    scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    scheduler.add_request(make_request("b", 10, 5), 0.0)
    run_step(scheduler)
    tables = [scheduler.sequences[name].table for name in "ab"]
    assert tables[0] is not None and tables[1] is not None
    assert tables[0].groups[0][:2] == tables[1].groups[0][:2]
    assert [scheduler.cache.pool.references(block) for block in tables[0].groups[0]] == [2, 2, 1]
    run_to_end(scheduler)
    assert scheduler.check_integrity() == [] and scheduler.cache.counts().held == 0


def test_blocks_of_a_batch_that_is_computing_are_not_matched() -> None:
    """Pitfall 3: of two equal prompts in one step, the second waits and then shares the computed blocks."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10), 0.0)
    scheduler.add_request(make_request("b", 10), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None and rows_of(scheduler) == {"a": 10}
    scheduler.commit(make_result(plan), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"a": 1, "b": 2}


def test_without_patience_a_prefix_is_computed_twice_rather_than_matched_too_early() -> None:
    """Pitfall 3."""
    scheduler = make_scheduler(prefix_wait_steps=0)
    scheduler.add_request(make_request("a", 10), 0.0)
    scheduler.add_request(make_request("b", 10), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None and rows_of(scheduler) == {"a": 10, "b": 10}
    assert len(set(plan.new_blocks[:, 3].tolist())) == 6


@pytest.mark.parametrize("other", [{"tenant": "t"}, {"adapter": AdapterVersion(1, "x")}])
def test_another_tenant_or_adapter_shares_nothing(other: dict[str, Any]) -> None:
    """Pitfalls 12 and 37."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, 1), 0.0)
    run_to_end(scheduler)
    scheduler.add_request(make_request("b", 10, 1, **other), 0.0)
    plan, _ = run_step(scheduler)
    assert plan.num_tokens == 10


# -- rejected requests ----------------------------------------------------------------------------------------------


def test_a_request_larger_than_the_pool_is_refused_at_once_with_both_numbers() -> None:
    """Pitfall 4."""
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    with pytest.raises(RequestTooLarge, match="needs 6 blocks of the KV cache, which has 5") as caught:
        scheduler.add_request(make_request("a", 15, 7), 0.0)
    assert (caught.value.details["needed"], caught.value.details["total"]) == (6, 5)
    assert scheduler.is_idle and scheduler.check_integrity() == []


def test_the_largest_request_that_fits_runs_to_its_end() -> None:
    """Pitfall 4: the last token needs no block, so 21 tokens fit into 20 positions."""
    scheduler = make_scheduler(num_blocks=5, block_size=4)
    scheduler.add_request(make_request("a", 15, 6), 0.0)
    run_to_end(scheduler)
    assert scheduler.counters.finished_by_reason[FinishReason.LENGTH] == 1


def test_an_open_id_is_refused_and_a_closed_one_may_come_again() -> None:
    """Pitfall 17."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 3), 0.0)
    with pytest.raises(DuplicateRequestId, match="'a' is already in use"):
        scheduler.add_request(make_request("a", 5), 0.0)
    assert scheduler.sequences["a"].num_prompt_tokens == 3
    scheduler.abort("a", 0.0)
    scheduler.add_request(make_request("a", 5), 0.0)
    assert scheduler.check_integrity() == []


def test_an_unknown_token_or_a_long_prompt_is_never_queued() -> None:
    """Pitfall 17."""
    scheduler = make_scheduler(vocab_size=100, max_model_len=20)
    for tokens in ([1, 100], [-1, 3]):
        with pytest.raises(TokenOutOfRange, match="outside the vocabulary, which has 100"):
            scheduler.add_request(make_request("a", tokens), 0.0)
    with pytest.raises(ContextLengthExceeded, match="prompt has 20 tokens, the limit is 20"):
        scheduler.add_request(make_request("a", 20), 0.0)
    assert scheduler.is_idle


def test_a_full_queue_rejects_with_both_numbers() -> None:
    scheduler = make_scheduler(max_queue_size=2)
    scheduler.add_request(make_request("a", 3), 0.0)
    scheduler.add_request(make_request("b", 3), 0.0)
    with pytest.raises(QueueFull, match="2 requests wait, the limit is 2"):
        scheduler.add_request(make_request("c", 3), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("c", 3), 0.0)


def test_a_request_that_ends_after_it_was_launched_again_loses_the_surplus_token() -> None:
    """Pitfall 6: its blocks are freed once, and the token of the second launch is dropped."""
    scheduler = make_scheduler(overlap=True)
    tables = record_released_tables(scheduler)
    scheduler.add_request(make_request("a", 6, 9, stop=[5]), 0.0)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert second.input_ids.tolist() == [LAST_SAMPLED]
    [output] = scheduler.commit(make_result(first, 5), 0.0)
    assert output.finish_reason is FinishReason.STOP and output.token_ids == (5,)
    assert scheduler.commit(make_result(second, 6), 0.0) == []
    assert len(tables) == 1 and scheduler.is_idle and scheduler.check_integrity() == []


def test_nothing_is_launched_beyond_the_length_limit() -> None:
    """Pitfall 6: a step that would exceed the length limit is not computed."""
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", 6, 1), 0.0)
    assert scheduler.schedule(0.0) is not None
    assert scheduler.schedule(0.0) is None


def test_a_victim_in_flight_keeps_the_token_of_its_step() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", 6, 9), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    assert scheduler.schedule(0.0) is None, "its last token is still in flight, so it cannot start"
    [output] = scheduler.commit(make_result(first, 5), 0.0)
    assert output.token_ids == (5,) and scheduler.sequences["a"].num_computed_tokens == 0
    assert scheduler.waiting_tokens == 7 and scheduler.check_integrity() == []
    plan = scheduler.schedule(0.0)
    assert plan is not None and plan.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 5]


def test_what_an_earlier_epoch_computed_is_not_counted_in_the_next() -> None:
    """A chunk comes back after its sequence was preempted and started again, with other blocks."""
    scheduler = make_scheduler(overlap=True, max_chunk_tokens=8)
    scheduler.add_request(make_request("a", 12, 9), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    assert scheduler.schedule(0.0) is not None and scheduler.sequences["a"].num_scheduled_tokens == 8
    scheduler.commit(make_result(first), 0.0)
    assert scheduler.sequences["a"].num_computed_tokens == 0 and scheduler.cache.counts().cached == 0
    assert scheduler.cache.match(scheduler.sequences["a"].block_hashes, 12).num_tokens == 0
    assert scheduler.check_integrity() == []


def test_a_victim_in_flight_may_end_with_that_token() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add_request(make_request("a", 6, 9, stop=[5]), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    [output] = scheduler.commit(make_result(first, 5), 0.0)
    assert output.finish_reason is FinishReason.STOP
    assert scheduler.is_idle and scheduler.waiting_tokens == 0 and scheduler.check_integrity() == []


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1])
def test_a_request_whose_time_is_up_ends_wherever_it_is(steps: int) -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, 9, timeout=5.0), 1.0)
    for _ in range(steps):
        run_step(scheduler, 2.0)
    assert scheduler.expire(5.9) == []
    [output] = scheduler.expire(6.0)
    assert isinstance(output.error, RequestTimeout) and output.error.details["timeout"] == 5.0
    assert scheduler.is_idle and scheduler.check_integrity() == []


def test_the_time_that_its_grammar_took_is_part_of_its_time_and_of_its_life() -> None:
    scheduler = make_scheduler(vocab_size=VOCAB_SIZE)
    request = make_request("a", 10, 9, timeout=5.0)
    request = replace(request, params=replace(request.params, structured=StructuredOutput(regex="a{90}")))
    scheduler.add_request(request, 10.0, [grammar_of(regex="a{90}")], waited=4.0)
    assert scheduler.expire(10.9) == []
    (output,) = scheduler.expire(11.0)
    assert isinstance(output.error, RequestTimeout) and output.error.details["timeout"] == 5.0
    assert output.timeline is not None
    assert [event[:2] for event in output.timeline.events] == [
        ("queued", 0.0),
        ("grammar_compiled", 4.0),
        ("finished", 5.0),
    ]


def test_the_time_of_an_id_that_came_again_is_its_own() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, 9, timeout=1.0), 0.0)
    scheduler.abort("a", 0.5)
    scheduler.add_request(make_request("a", 10, 9, timeout=5.0), 0.5)
    assert scheduler.expire(2.0) == [] and len(scheduler.expire(5.5)) == 1


def test_deadlines_of_requests_that_ended_do_not_pile_up() -> None:
    scheduler = make_scheduler()
    for number in range(1000):
        scheduler.add_request(make_request(str(number), 3, 1, timeout=1e6), 0.0)
        scheduler.abort(str(number), 0.0)
    assert len(scheduler._deadlines._heap) < 200
