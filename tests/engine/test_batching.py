"""Whether prompt tokens may ride, and how a policy is chosen."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.batching import DEFAULT_SAFETY_MARGIN, FifoMargin, Mixed, make_batching
from support_engine import answer, ask, make_scheduler, rows_of, turn


def test_mixed_always_lets_prompts_ride() -> None:
    assert Mixed().may_prefill(free_share=0.0, generating=9)


@pytest.mark.parametrize(
    ("free_share", "generating", "may"), [(0.3, 1, True), (0.2, 1, True), (0.19, 1, False), (0.0, 0, True)]
)
def test_below_the_margin_prompts_ride_only_when_nobody_generates(
    free_share: float, generating: int, may: bool
) -> None:
    assert FifoMargin(0.2).may_prefill(free_share=free_share, generating=generating) is may


def test_policies_are_chosen_by_name() -> None:
    assert isinstance(make_batching("mixed", None), Mixed)
    for margin, free in ((None, DEFAULT_SAFETY_MARGIN), (0.5, 0.5)):
        fifo = make_batching("fifo", margin)
        assert fifo.may_prefill(free_share=free, generating=1)
        assert not fifo.may_prefill(free_share=free - 0.01, generating=1)


@pytest.mark.parametrize(
    ("name", "margin", "said"),
    [
        ("fifo", 1.0, "at least 0 and less than 1, got 1.0"),
        ("fifo", -0.1, "at least 0 and less than 1, got -0.1"),
        ("fifo", float("nan"), "at least 0 and less than 1, got nan"),
        ("mixed", 0.2, "belongs to batching 'fifo'"),
        ("other", None, "unknown batching 'other'; there is fifo, mixed"),
    ],
)
def test_an_impossible_choice_is_refused(name: str, margin: float | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_batching(name, margin)


def test_under_the_margin_a_newcomer_waits_until_blocks_are_free() -> None:
    scheduler = make_scheduler(num_blocks=10, block_size=4, batching="fifo", safety_margin=0.5)
    scheduler.add(ask("a", [500] * 24, 3), 0.0)
    turn(scheduler)
    scheduler.add(ask("b", [501] * 3, 9), 0.0)
    seen = []
    for _ in range(3):
        scheduler.schedule(0.0)
        seen.append(rows_of(scheduler))
        scheduler.commit(answer(scheduler.flights[-1].plan), 0.0)
    assert seen == [{"a": 1}, {"a": 1}, {"b": 3}]
