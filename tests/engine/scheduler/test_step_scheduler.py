"""StepScheduler: decodes run in every step, prompts run in fair chunks, and no request starves."""

from typing import Any

import pytest

from chairlift.engine.queue_wait_by_reason import WaitReason
from support_engine import make_request, make_result, make_scheduler, rows_of, run_step
from support_shares import for_each


def distinct_prompts(count: int, start: int = 0) -> list[list[int]]:
    """Return `count` prompts of one token without a common prefix."""
    return [[100 + start + number] for number in range(count)]


def test_prompts_never_starve_decoding_sequences() -> None:
    """Pitfall 9: under a flood of long prompts every decoding request gets a token in every step."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=16, max_running_requests=8)
    for number in range(3):
        scheduler.add_request(make_request(f"g{number}", [500 + number], 60), 0.0)
    run_step(scheduler)
    for number in range(30):
        scheduler.add_request(make_request(f"p{number}", [600 + number] * 100, 1), 0.0)
    for _ in range(50):
        plan, outputs = run_step(scheduler)
        assert plan.num_tokens == 16
        assert {"g0", "g1", "g2"} <= {output.request_id for output in outputs}


def test_decoding_sequences_never_starve_prompts() -> None:
    """As many slots as tokens: a prefilling sequence still gets one token a step."""
    scheduler = make_scheduler(num_blocks=200, max_batch_tokens=4, max_running_requests=99)
    for number in range(3):
        scheduler.add_request(make_request(f"g{number}", [500 + number], 400), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("p", 40, 1), 0.0)
    for _ in range(40):
        run_step(scheduler)
    assert "p" not in scheduler.sequences


def test_several_long_prompts_advance_together_each_within_its_share() -> None:
    """Pitfall 8: one long prompt does not stall the others."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for number in range(4):
        scheduler.add_request(make_request(str(number), [600 + number] * 200, 1), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"0": 16, "1": 16, "2": 16, "3": 16}


def test_equal_prompts_are_prefilled_one_after_the_other_once_they_run() -> None:
    """In parallel, all of them would end in the last step."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for number in range(6):
        scheduler.add_request(make_request(str(number), [600 + number] * 208, 1), 0.0)
    steps, ended = 0, {}
    while scheduler.sequences:
        plan, outputs = run_step(scheduler)
        steps += 1
        assert plan.num_tokens == 64 or len(scheduler.sequences) == 0
        ended |= {output.request_id: steps for output in outputs}
    assert steps == -(-6 * 208 // 64) == 20
    assert list(ended) == list("012345") and ended["0"] == 4 and ended["1"] <= 7


def test_the_first_to_start_goes_on_while_shorter_rests_are_prefilled() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for name, tokens in (("oldest", 300), ("longer", 250), ("nearest", 100)):
        scheduler.add_request(make_request(name, [600 + tokens] * tokens, 1), 0.0)
    run_step(scheduler)  # all three start
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"oldest": 16, "nearest": 48}


def test_no_prompt_starves_while_shorter_ones_keep_arriving() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for name in ("first", "second"):
        scheduler.add_request(make_request(name, [len(name) + 600] * 320, 1), 0.0)
    ended = {}
    for step in range(60):
        scheduler.add_request(make_request(f"short{step}", [700 + step] * 64, 1), 0.0)
        ended |= {output.request_id: step for output in run_step(scheduler)[1]}
    assert ended["first"] <= 20 and ended["second"] <= 40


def test_prompts_are_prefilled_in_parallel_while_a_shorter_one_may_start() -> None:
    """Pitfall 8: a short prompt is behind two long ones in the queue and must not wait for both."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, max_running_requests=8)
    scheduler.add_request(make_request("a", [600] * 300, 1), 0.0)
    run_step(scheduler)
    for name, tokens in (("b", 300), ("short", 12)):
        scheduler.add_request(make_request(name, [600 + tokens] * tokens, 1), 0.0)
    _, outputs = run_step(scheduler)
    assert [output.request_id for output in outputs] == ["short"]


def test_a_long_prompt_that_is_nearly_all_cached_counts_as_a_short_one() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, block_size=4)
    cached_prompt = list(range(500, 780))
    scheduler.add_request(make_request("before", cached_prompt, 1), 0.0)
    while scheduler.sequences:
        run_step(scheduler)
    scheduler.add_request(make_request("long", [900] * 200, 1), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("again", [*cached_prompt, 1], 1), 0.0)
    _, outputs = run_step(scheduler)
    assert [output.request_id for output in outputs] == ["again"]


@for_each(
    "options",
    [
        {"scheduling_policy": "priority"}, {"scheduling_policy": "fair"}, {"scheduling_policy": "cache_aware"},
        {"long_prefill_threshold": 16},
        {"batching_policy": "decode_first"}, {"batching_policy": "fifo"}, {"target_itl_ms": 10.0},
    ],
)  # fmt: skip
def test_prompts_run_in_parallel_where_another_rule_divides_the_step(options: dict[str, Any]) -> None:
    """Also if prompts get fewer tokens once a sequence decodes: the first to end would delay all others."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, **options)
    for number in range(4):
        scheduler.add_request(make_request(str(number), [600 + number] * 200, 1), 0.0)
    run_step(scheduler)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"0": 16, "1": 16, "2": 16, "3": 16}


def test_no_chunk_is_larger_than_is_allowed_in_turn_either() -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, max_chunk_tokens=40)
    for number in range(4):
        scheduler.add_request(make_request(str(number), [600 + number] * 200, 1), 0.0)
    run_step(scheduler)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"0": 40, "1": 24}


def test_prompts_that_end_soon_end_one_after_the_other() -> None:
    """In parallel, four prompts of 30 tokens would all end in the second step of 64."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    for number in range(4):
        scheduler.add_request(make_request(str(number), [600 + number] * 30, 1), 0.0)
    ended = [[output.request_id for output in run_step(scheduler)[1]] for _ in range(2)]
    assert ended == [["0", "1"], ["2", "3"]]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({}, 64), ({"max_chunk_tokens": 10}, 10), ({"max_prefill_tokens": 20}, 20), ({"long_prefill_threshold": 5}, 64)],
)
def test_a_prompt_alone_takes_what_the_limits_leave(options: dict[str, int], tokens: int) -> None:
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64, **options)
    scheduler.add_request(make_request("a", 200, 1), 0.0)
    plan, _ = run_step(scheduler)
    assert plan.num_tokens == tokens


def test_a_short_prompt_behind_a_long_one_is_prefilled_at_once() -> None:
    """Pitfall 8."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=64)
    scheduler.add_request(make_request("long", [600] * 300, 1), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("short", [601] * 10, 1), 0.0)
    _, outputs = run_step(scheduler)
    assert [output.request_id for output in outputs] == ["short"]


@pytest.mark.parametrize(
    "options", [{"batching_policy": "decode_first"}, {"batching_policy": "mixed"}, {"target_itl_ms": 10.0}]
)
def test_a_short_prompt_is_prefilled_beside_a_long_one_with_any_prefill_budget(options: dict[str, Any]) -> None:
    """Pitfall 8, with a prefill budget that is smaller than the configured fair chunk."""
    scheduler = make_scheduler(num_blocks=4000, max_batch_tokens=256, max_model_len=10_000, caching=False, **options)
    scheduler.add_request(make_request("generates", [500] * 4, 2000), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("long", [501] * 4000, 2), 0.0)
    scheduler.add_request(make_request("short", [502] * 4, 2), 0.0)
    now = 0.0
    for _ in range(3):
        plan = scheduler.schedule(now)
        assert plan is not None
        now += 0.005 + 0.00005 * plan.num_tokens
        scheduler.commit(make_result(plan), now)
    assert "short" not in scheduler.sequences and "long" in scheduler.sequences


def test_few_tokens_beside_many_decoding_sequences_are_shared_too() -> None:
    """Pitfall 8: decoding sequences leave fewer tokens than the configured fair chunk."""
    scheduler = make_scheduler(num_blocks=400, max_batch_tokens=32, max_running_requests=32)
    for number in range(24):
        scheduler.add_request(make_request(f"g{number}", [510 + number], 50), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("long", [501] * 300, 2), 0.0)
    scheduler.add_request(make_request("short", [502] * 2, 1), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler)["long"] == 6 and rows_of(scheduler)["short"] == 2


def test_a_prompt_is_topped_up_when_no_other_may_start() -> None:
    """The only prefilling prompt gets all tokens of the step because the other one may not start."""
    scheduler = make_scheduler(batching_policy="static", max_batch_tokens=64, max_running_requests=1, num_blocks=200)
    scheduler.add_request(make_request("a", [500] * 100, 2), 0.0)
    run_step(scheduler)
    scheduler.add_request(make_request("b", [501] * 8, 2), 0.0)
    scheduler.schedule(0.0)
    assert rows_of(scheduler) == {"a": 36}


def test_slots_and_tokens_bound_the_step() -> None:
    scheduler = make_scheduler(max_batch_tokens=8, max_running_requests=3)
    for number, prompt in enumerate(distinct_prompts(5)):
        scheduler.add_request(make_request(str(number), prompt, 9), 0.0)
    plan, _ = run_step(scheduler)
    assert plan.num_rows == 3 and scheduler.wait_clock.reason is WaitReason.RUNNING_LIMIT
    assert len(scheduler.running) == 3
