"""Sequence: its counters, and the states that users see."""

import pytest

from chairlift.core.adapter_version import AdapterVersion
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ForwardFailed
from chairlift.core.request import RequestPhase
from chairlift.engine.sequence import Sequence, SequenceStatus
from support_engine import make_request, make_result, make_scheduler, run_step


def make(prompt: int = 6, outputs: int = 3, **options: object) -> Sequence:
    return Sequence(make_request("a", prompt, outputs, **options), 0, b"root", 10.0)


def test_a_new_sequence_wants_its_whole_prompt() -> None:
    sequence = make()
    assert (sequence.num_unscheduled_tokens, sequence.num_tokens_with_pending, sequence.num_output_tokens) == (6, 6, 0)
    assert sequence.deadline is None and sequence.slot == -1 and sequence.table is None


def test_a_deadline_counts_from_the_arrival() -> None:
    assert make(timeout=2.5).deadline == 12.5


def test_what_is_pending_counts_as_seen_and_may_be_wanted() -> None:
    sequence = make()
    sequence.num_scheduled_tokens, sequence.num_pending_samples = 6, 1
    assert (sequence.num_unscheduled_tokens, sequence.num_tokens_with_pending) == (1, 7)


def test_no_token_is_needed_once_the_samples_in_flight_reach_the_limit() -> None:
    sequence = make(outputs=1)
    sequence.num_scheduled_tokens, sequence.num_pending_samples = 6, 1
    assert sequence.num_unscheduled_tokens == 0


def test_all_kinds_of_stop_ids_count() -> None:
    assert make(stop=[4, 5], eos_token_ids=(2, 3)).stop_token_ids == {2, 3, 4, 5}


def test_blocks_are_named_as_they_fill() -> None:
    sequence = make()
    sequence.update_block_hashes(4)
    assert len(sequence.block_hashes) == 1
    sequence.token_ids += [1, 2]
    sequence.update_block_hashes(4)
    assert len(sequence.block_hashes) == 2


def test_a_new_sequence_says_how_many_tokens_are_outputs() -> None:
    sequence = make(adapter=AdapterVersion(3, "x"), eos_token_ids=(2,))
    sequence.token_ids += [8, 9]
    sequence.slot = 5
    new_sequence = sequence.to_new_sequence()
    assert (new_sequence.slot, new_sequence.token_ids, new_sequence.num_output_tokens) == (
        5,
        (1, 2, 3, 4, 5, 6, 8, 9),
        2,
    )
    assert (new_sequence.adapter, new_sequence.eos_token_ids, new_sequence.params) == (
        3,
        (2,),
        sequence.request.params,
    )


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (FinishReason.STOP, RequestPhase.FINISHED), (FinishReason.LENGTH, RequestPhase.FINISHED),
        (FinishReason.ABORT, RequestPhase.CANCELLED), (FinishReason.ERROR, RequestPhase.FAILED),
    ],
)  # fmt: skip
def test_the_last_state_follows_the_finish_reason(reason: FinishReason, state: RequestPhase) -> None:
    sequence = make()
    sequence.status, sequence.finish_reason = SequenceStatus.FINISHED, reason
    assert sequence.state is state


def test_the_states_of_a_chunked_prompt_with_a_preemption() -> None:
    scheduler = make_scheduler(max_chunk_tokens=4)
    scheduler.add_request(make_request("a", 6, 3), 0.0)
    sequence = scheduler.sequences["a"]
    states = [sequence.state]
    for _ in range(2):
        plan = scheduler.schedule(0.0)
        assert plan is not None
        states.append(sequence.state)
        scheduler.commit(make_result(plan), 0.0)
        states.append(sequence.state)
    scheduler.table.preempt(sequence, 0.0)
    states.append(sequence.state)
    run_step(scheduler)
    states.append(sequence.state)
    run_step(scheduler)
    states.append(sequence.state)
    assert states == [
        "pending", "prefilling_split", "split_pending_remainder", "prefilling", "decoding",
        "pending", "decoding", "finished",
    ]  # fmt: skip


def test_a_whole_prompt_in_one_step_is_prefilling() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 6, 3), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None and scheduler.sequences["a"].state is RequestPhase.PREFILLING
    sequence = scheduler.sequences["a"]
    scheduler.rollback(plan, ForwardFailed("boom"), 0.0)
    assert sequence.state is RequestPhase.FAILED
