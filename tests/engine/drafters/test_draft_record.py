"""DraftRecord: counts drafts by drafter, and estimates how likely the next ones are confirmed."""

import random

import pytest

from chairlift.engine.drafters.draft_record import FIRST_RATE, ConfirmationRate, DraftRecord, DraftSource, EngineRates

SHORT, LONG, PREDICTED = DraftSource("ngram", 1), DraftSource("ngram", 4), DraftSource("prediction")


def test_drafts_are_counted_by_drafter() -> None:
    record = DraftRecord()
    record.add(LONG, 4, 3)
    record.add(PREDICTED, 2, 2)
    record.add(SHORT, 5, 0)
    assert record.confirmed == {"ngram": 3, "prediction": 2} and record.rejected == {"ngram": 6, "prediction": 0}
    assert (record.num_confirmed, record.num_rejected) == (5, 6)
    assert record.rates[LONG].mean(0.0) == 3 / 6 > record.rates[SHORT].mean(0.0) == 0


def test_a_sequence_without_drafts_has_the_rate_of_others() -> None:
    rates, record = EngineRates(), DraftRecord()
    assert rates.rate(SHORT, None) == rates.rate(SHORT, record) == FIRST_RATE
    for _ in range(50):
        rates.add(SHORT, 3, 0)
        rates.add(LONG, 3, 3)
    assert rates.rate(SHORT, record) < 0.1 and rates.rate(LONG, record) > 0.95
    for _ in range(20):
        record.add(SHORT, 3, 3)
    assert rates.rate(SHORT, record) > 0.9 and rates.rate(SHORT, DraftRecord()) < 0.1


def test_one_wrong_draft_does_not_end_a_source_and_one_that_was_wrong_is_tried_again_at_last() -> None:
    rates = EngineRates()
    rates.add(SHORT, 1, 0)
    assert rates.rate(SHORT, None) > 0.5
    for _ in range(200):
        rates.add(SHORT, 1, 0)
    assert rates.rate(SHORT, None) < 0.05
    for _ in range(10_000):
        rates.pass_step()
    assert rates.rate(SHORT, None) > 0.5


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
def test_an_estimate_comes_close_to_the_rate(rate: float) -> None:
    rng, estimate, means = random.Random(3), ConfirmationRate(), list[float]()
    for _ in range(2000):
        count = next((place for place in range(6) if rng.random() > rate), 6)
        estimate.add(6, count)
        means.append(estimate.mean(FIRST_RATE))
    assert sum(means[200:]) / len(means[200:]) == pytest.approx(rate, abs=0.06)


def test_wrong_drafts_are_forgotten_in_time() -> None:
    estimate = ConfirmationRate()
    for _ in range(50):
        estimate.add(1, 0)
    low = estimate.mean(0.5)
    for _ in range(300):
        estimate.fade()
    assert low < 0.1 and estimate.mean(0.5) > 0.45
