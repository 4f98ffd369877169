"""StepScheduler: decodes always run, prompts in fair chunks, the waiting queue in order, no request starves."""

import random
from typing import Any

import pytest

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.kv.free_block_list import BlockId
from chairlift.engine.runner.fake import FakeConfig
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.step_scheduler import MAX_SKIPPED_WAITING
from chairlift.engine.timeline import WaitReason
from support_engine import Lift, answer, ask, make_scheduler, rows_of, turn

# -- how a step is shared --------------------------------------------------------------------------------------------


def names(count: int, start: int = 0) -> list[list[int]]:
    """Return prompts that share nothing."""
    return [[100 + start + number] for number in range(count)]


def test_prompts_never_starve_those_who_generate() -> None:
    """Pitfall 9: under a flood of long prompts every generating request gets its token in every step."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=16, max_running_requests=8)
    for number in range(3):
        scheduler.add_request(ask(f"g{number}", [500 + number], 60), 0.0)
    turn(scheduler)
    for number in range(30):
        scheduler.add_request(ask(f"p{number}", [600 + number] * 100, 1), 0.0)
    for _ in range(50):
        plan, outputs = turn(scheduler)
        assert plan.num_tokens == 16
        assert {"g0", "g1", "g2"} <= {output.request_id for output in outputs}


def test_generating_ones_never_starve_prompts() -> None:
    """As many slots as tokens: a prefilling sequence still gets one token a step."""
    scheduler = make_scheduler(num_blocks=200, max_batch_tokens=4, max_running_requests=99)
    for number in range(3):
        scheduler.add_request(ask(f"g{number}", [500 + number], 400), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("p", 40, 1), 0.0)
    for _ in range(40):
        turn(scheduler)
    assert "p" not in scheduler.sequences


def test_several_long_prompts_advance_together_each_within_its_share() -> None:
    """Pitfall 8: one long prompt does not stall the others."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for number in range(4):
        scheduler.add_request(ask(str(number), [600 + number] * 200, 1), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"0": 16, "1": 16, "2": 16, "3": 16}


def test_equal_prompts_are_prefilled_one_after_the_other_once_they_run() -> None:
    """Side by side, all of them would end in the last step."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for number in range(6):
        scheduler.add_request(ask(str(number), [600 + number] * 208, 1), 0.0)
    steps, ended = 0, {}
    while scheduler.sequences:
        plan, outputs = turn(scheduler)
        steps += 1
        assert plan.num_tokens == 64 or len(scheduler.sequences) == 0
        ended |= {output.request_id: steps for output in outputs}
    assert steps == -(-6 * 208 // 64) == 20
    assert list(ended) == list("012345") and ended["0"] == 4 and ended["1"] <= 7


def test_the_first_to_start_goes_on_while_shorter_rests_are_prefilled() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for name, tokens in (("oldest", 300), ("longer", 250), ("nearest", 100)):
        scheduler.add_request(ask(name, [600 + tokens] * tokens, 1), 0.0)
    turn(scheduler)  # all three start
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"oldest": 16, "nearest": 48}


def test_no_prompt_starves_while_shorter_ones_keep_arriving() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for name in ("first", "second"):
        scheduler.add_request(ask(name, [len(name) + 600] * 320, 1), 0.0)
    ended = {}
    for step in range(60):
        scheduler.add_request(ask(f"short{step}", [700 + step] * 64, 1), 0.0)
        ended |= {output.request_id: step for output in turn(scheduler)[1]}
    assert ended["first"] <= 20 and ended["second"] <= 40


def test_prompts_are_prefilled_in_parallel_while_a_shorter_one_may_start() -> None:
    """Pitfall 8: a short prompt is behind two long ones in the queue and needs its turn."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, max_running_requests=8)
    scheduler.add_request(ask("a", [600] * 300, 1), 0.0)
    turn(scheduler)
    for name, tokens in (("b", 300), ("short", 12)):
        scheduler.add_request(ask(name, [600 + tokens] * tokens, 1), 0.0)
    _, outputs = turn(scheduler)
    assert [output.request_id for output in outputs] == ["short"]


def test_a_long_prompt_that_is_nearly_all_cached_counts_as_a_short_one() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, block_size=4)
    known = list(range(500, 780))
    scheduler.add_request(ask("before", known, 1), 0.0)
    while scheduler.sequences:
        turn(scheduler)
    scheduler.add_request(ask("long", [900] * 200, 1), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("again", [*known, 1], 1), 0.0)
    _, outputs = turn(scheduler)
    assert [output.request_id for output in outputs] == ["again"]


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "priority"}, {"policy": "fair"}, {"policy": "cache_aware"}, {"long_prefill_threshold": 16},
        {"batching": "decode_first"}, {"batching": "fifo"}, {"target_itl_ms": 10.0},
    ],
)  # fmt: skip
def test_prompts_stay_side_by_side_where_something_else_decides_who_gets_what(options: dict[str, Any]) -> None:
    """Also where prompts get less once a sequence decodes: the first to end would make all others late."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, **options)
    for number in range(4):
        scheduler.add_request(ask(str(number), [600 + number] * 200, 1), 0.0)
    turn(scheduler)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"0": 16, "1": 16, "2": 16, "3": 16}


def test_no_chunk_is_larger_than_is_allowed_in_turn_either() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, max_chunk_tokens=40)
    for number in range(4):
        scheduler.add_request(ask(str(number), [600 + number] * 200, 1), 0.0)
    turn(scheduler)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"0": 40, "1": 24}


def test_prompts_that_end_soon_end_one_after_the_other() -> None:
    """Side by side, four of 30 tokens would all end in the second step of 64."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for number in range(4):
        scheduler.add_request(ask(str(number), [600 + number] * 30, 1), 0.0)
    ended = [[output.request_id for output in turn(scheduler)[1]] for _ in range(2)]
    assert ended == [["0", "1"], ["2", "3"]]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({}, 64), ({"max_chunk_tokens": 10}, 10), ({"max_prefill_tokens": 20}, 20), ({"long_prefill_threshold": 5}, 64)],
)
def test_a_prompt_alone_takes_what_the_limits_leave(options: dict[str, int], tokens: int) -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, **options)
    scheduler.add_request(ask("a", 200, 1), 0.0)
    plan, _ = turn(scheduler)
    assert plan.num_tokens == tokens


def test_a_short_prompt_behind_a_long_one_is_read_at_once() -> None:
    """Pitfall 8."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    scheduler.add_request(ask("long", [600] * 300, 1), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("short", [601] * 10, 1), 0.0)
    _, outputs = turn(scheduler)
    assert [output.request_id for output in outputs] == ["short"]


@pytest.mark.parametrize("options", [{"batching": "decode_first"}, {"batching": "mixed"}, {"target_itl_ms": 10.0}])
def test_a_short_prompt_is_read_beside_a_long_one_however_little_prompts_get(options: dict[str, Any]) -> None:
    """Pitfall 8, where the step's share for prompts is smaller than the configured fair chunk."""
    scheduler = make_scheduler(num_blocks=4000, max_batch_tokens=256, max_model_len=10_000, caching=False, **options)
    scheduler.add_request(ask("generates", [500] * 4, 2000), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("long", [501] * 4000, 2), 0.0)
    scheduler.add_request(ask("short", [502] * 4, 2), 0.0)
    now = 0.0
    for _ in range(3):
        plan = scheduler.schedule(now)
        assert plan is not None
        now += 0.005 + 0.00005 * plan.num_tokens
        scheduler.commit(answer(plan), now)
    assert "short" not in scheduler.sequences and "long" in scheduler.sequences


def test_few_tokens_beside_many_that_generate_are_shared_too() -> None:
    """Pitfall 8: what those who generate leave of the step is less than the configured fair chunk."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=32, max_running_requests=32)
    for number in range(24):
        scheduler.add_request(ask(f"g{number}", [510 + number], 50), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("long", [501] * 300, 2), 0.0)
    scheduler.add_request(ask("short", [502] * 2, 1), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler)["long"] == 6 and rows_of(scheduler)["short"] == 2


def test_a_prompt_is_topped_up_when_no_other_may_start() -> None:
    """Four are read, and the fourth one's quarter is more than it needs."""
    scheduler = make_scheduler(batching="static", max_batch_tokens=64, max_running_requests=1, num_blocks=200)
    scheduler.add_request(ask("a", [500] * 100, 2), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("b", [501] * 8, 2), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"a": 36}


def test_slots_and_tokens_bound_the_step() -> None:
    scheduler = make_scheduler(max_batch_tokens=8, max_running_requests=3)
    for number, prompt in enumerate(names(5)):
        scheduler.add_request(ask(str(number), prompt, 9), 0.0)
    plan, _ = turn(scheduler)
    assert plan.num_rows == 3 and scheduler.wait_clock.reason is WaitReason.RUNNING_LIMIT
    assert len(scheduler.running) == 3


# -- who waits -------------------------------------------------------------------------------------------------------


def waiting(scheduler: Scheduler) -> list[str]:
    return [sequence.request.request_id for sequence in scheduler.waiting]


def crowded(max_bypass: int, **options: Any) -> Scheduler:
    """One sequence decodes and holds a third of the pool; the head of the queue needs nearly all of it."""
    scheduler = make_scheduler(num_blocks=20, block_size=4, max_bypass=max_bypass, **options)
    scheduler.add_request(ask("running", [500] * 24, 50), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("head", [501] * 60, 2), 0.0)
    for number in range(6):
        scheduler.add_request(ask(f"small {number}", [510 + number], 1), 0.0)
    return scheduler


@pytest.mark.parametrize("max_bypass", [0, 1, 3])
def test_a_head_that_does_not_fit_is_passed_max_bypass_times_and_then_never(max_bypass: int) -> None:
    """Pitfalls 8 and 10: no starvation either way."""
    scheduler = crowded(max_bypass)
    started: list[str] = []
    for _ in range(20):
        _, outputs = turn(scheduler)
        started += [output.request_id for output in outputs if output.request_id != "running"]
    assert started == [f"small {number}" for number in range(max_bypass)]
    assert waiting(scheduler)[0] == "head" and scheduler.sequences["head"].num_bypasses == max_bypass
    assert scheduler.wait_clock.reason is WaitReason.BLOCKS
    scheduler.abort("running", 0.0)
    turn(scheduler)
    assert "head" not in waiting(scheduler)


def test_to_start_the_whole_input_must_fit_and_not_only_its_first_chunk() -> None:
    """Pitfall 7."""
    scheduler = crowded(0, max_chunk_tokens=4)
    for _ in range(10):
        turn(scheduler)
    assert waiting(scheduler)[0] == "head" and scheduler.counters.preemptions == 0


def test_what_is_promised_to_one_prompt_is_not_given_to_the_next() -> None:
    """Pitfall 7: two prompts that fit one at a time run one after the other."""
    scheduler = make_scheduler(num_blocks=20, block_size=4, max_chunk_tokens=4)
    scheduler.add_request(ask("a", [501] * 50, 1), 0.0)
    scheduler.add_request(ask("b", [502] * 50, 1), 0.0)
    turn(scheduler)
    assert waiting(scheduler) == ["b"]
    while scheduler.sequences:
        turn(scheduler)
    assert scheduler.counters.preemptions == 0 and scheduler.counters.scheduled_tokens == 100


@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 37])
def test_recomputing_near_a_full_pool_is_bounded(block_size: int) -> None:
    """Pitfall 7: with twice the largest request's blocks, less than a third of all work is done again."""
    fake = FakeConfig(vocab_size=500, max_model_len=256, num_blocks=2 * -(-200 // block_size), block_size=block_size)
    lift = Lift(fake, max_batch_tokens=64, max_running_requests=16)
    rng = random.Random(1)
    for number in range(40):
        prompt = [rng.randrange(500) for _ in range(rng.randrange(10, 60))]
        lift.submit(ask(str(number), prompt, rng.randrange(20, 120)))
    lift.drain()
    lift.prove(calm=True)
    useful = sum(len(request.prompt_token_ids) + len(lift.tokens[name]) - 1 for name, request in lift.requests.items())
    again = lift.scheduler.counters.scheduled_tokens - useful
    assert lift.scheduler.counters.preemptions > 0, "the pool was never full"
    assert again < useful / 3, f"{again} tokens computed again of {useful}"


def test_the_walk_along_the_line_ends_somewhere() -> None:
    scheduler = crowded(10**6)
    for number in range(MAX_SKIPPED_WAITING + 50):
        scheduler.add_request(ask(f"large {number}", [700 + number] * 60, 2), 0.0)
    scheduler.add_request(ask("far behind", [9], 1), 0.0)
    turn(scheduler)
    turn(scheduler)
    assert "far behind" in waiting(scheduler)


# -- waiting for another's prefix ------------------------------------------------------------------------------------


def test_patience_for_a_prefix_is_bounded() -> None:
    scheduler = make_scheduler(max_chunk_tokens=1, prefix_wait_steps=3, max_batch_tokens=8)
    scheduler.add_request(ask("a", 20, 1), 0.0)
    scheduler.add_request(ask("b", 20, 1), 0.0)
    steps = []
    for _ in range(6):
        scheduler.schedule(0.0)
        steps.append(list(rows_of(scheduler)))
        scheduler.commit(answer(scheduler.in_flight_steps[-1].plan), 0.0)
    assert steps == [["a"]] * 3 + [["a", "b"]] * 3


def test_prefix_waits_are_counted_anew_for_each_epoch() -> None:
    scheduler = make_scheduler(max_chunk_tokens=1, prefix_wait_steps=3)
    scheduler.add_request(ask("a", 20, 1), 0.0)
    scheduler.add_request(ask("b", 20, 1), 0.0)
    for _ in range(4):
        turn(scheduler)
    scheduler.table.preempt(scheduler.sequences["b"], 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"a": 1}


@pytest.mark.parametrize("way", ["abort", "fail", "preempt"])
def test_a_prefix_whose_owner_leaves_is_waited_for_no_longer(way: str) -> None:
    scheduler = make_scheduler(max_chunk_tokens=4)
    scheduler.add_request(ask("a", 20, 1), 0.0)
    scheduler.add_request(ask("b", 20, 1), 0.0)
    turn(scheduler)
    if way == "abort":
        scheduler.abort("a", 0.0)
    elif way == "preempt":
        scheduler.table.preempt(scheduler.sequences["a"], 0.0)
    else:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        scheduler.rollback(plan, ValueError("boom"), 0.0)
    for _ in range(20):
        if scheduler.sequences:
            turn(scheduler)
    assert not scheduler.sequences and scheduler.check_integrity() == []


def test_two_that_wait_for_each_others_prefix_do_not_wait_for_ever() -> None:
    """Many twins, each step one owner: no deadlock, and the prefix is computed once."""
    scheduler = make_scheduler(num_blocks=200, max_chunk_tokens=4, max_batch_tokens=32)
    for number in range(10):
        scheduler.add_request(ask(str(number), [*range(1, 21), 100 + number], 2), 0.0)
    steps = 0
    while scheduler.sequences:
        turn(scheduler)
        steps += 1
    assert scheduler.counters.scheduled_tokens == 20 + 10 * 2 and steps < 20


# -- who leaves ------------------------------------------------------------------------------------------------------


def test_the_victim_is_who_loses_the_least_computed_work() -> None:
    """Pitfall 7."""
    scheduler = make_scheduler(num_blocks=12, block_size=4, caching=False)
    scheduler.add_request(ask("long", [501] * 16, 30), 0.0)
    scheduler.add_request(ask("short", [502] * 3, 40), 0.0)
    turn(scheduler)
    assert waiting(scheduler) == []
    while not scheduler.counters.preemptions:
        turn(scheduler)
    assert waiting(scheduler) == ["short"]


def test_work_that_another_holds_too_is_not_lost() -> None:
    scheduler = make_scheduler(num_blocks=64, block_size=4)
    prefix = [501] * 16
    scheduler.add_request(ask("owner", [*prefix, 1], 9), 0.0)
    turn(scheduler)
    scheduler.add_request(ask("shares", [*prefix, 2], 9), 0.0)
    scheduler.add_request(ask("alone", [503] * 4, 9), 0.0)
    turn(scheduler)
    assert scheduler._step_scheduler._running_scheduler._select_victim().request.request_id == "shares"


def test_who_was_preempted_often_is_spared() -> None:
    scheduler = make_scheduler(num_blocks=64, block_size=4, caching=False, protect_after_preemptions=2)
    scheduler.add_request(ask("long", [501] * 16, 9), 0.0)
    scheduler.add_request(ask("short", [502] * 3, 9), 0.0)
    turn(scheduler)
    scheduler.sequences["short"].num_preemptions = 2
    assert scheduler._step_scheduler._running_scheduler._select_victim().request.request_id == "long"
    scheduler.sequences["long"].num_preemptions = 2
    assert scheduler._step_scheduler._running_scheduler._select_victim().request.request_id == "short", (
        "among the spared the last to come"
    )


def test_a_victim_gives_back_what_it_got_in_the_same_step() -> None:
    """A sequence that already has its token in the step is preempted; budgets add up again."""
    scheduler = make_scheduler(num_blocks=6, block_size=4, caching=False, max_batch_tokens=8)
    scheduler.add_request(ask("a", [501], 20), 0.0)
    scheduler.add_request(ask("b", [502], 20), 0.0)
    steps = 0
    while scheduler.sequences:
        plan, _ = turn(scheduler)
        steps += 1
        held = [block for sequence in scheduler.running.values() for block in (sequence.table or ()).groups[0]]
        assert len(held) == len(set(held)) and plan.num_rows <= 2
    assert scheduler.counters.preemptions and steps < 60


def test_a_request_that_does_not_fit_alone_fails_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cannot happen while admission is right; if it does, one request ends and not the engine."""
    scheduler = make_scheduler(num_blocks=8, block_size=4)
    scheduler.add_request(ask("a", [501] * 4, 20), 0.0)
    turn(scheduler)

    def refuse(count: int) -> list[BlockId]:
        raise OutOfBlocks(free=0, total=8, needed=count)

    monkeypatch.setattr(scheduler.cache.pool, "allocate", refuse)
    assert scheduler.schedule(0.0) is None
    monkeypatch.undo()
    assert not scheduler.is_idle, "the last Output is still to be delivered"
    [output] = scheduler.expire(0.0)
    assert isinstance(output.error, OutOfBlocks) and output.error.details["total"] == 8
    assert scheduler.is_idle
