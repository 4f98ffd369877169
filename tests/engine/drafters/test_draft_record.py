"""DraftRecord: counts drafts by drafter, and estimates how likely the next ones are confirmed."""

import random

import pytest

from chairlift.engine.drafters.draft_record import FIRST_RATE, ConfirmationRate, DraftRecord


def test_drafts_are_counted_by_drafter() -> None:
    record = DraftRecord()
    record.add("ngram", 4, 3)
    record.add("prediction", 2, 2)
    record.add("ngram", 5, 0)
    assert record.confirmed == {"ngram": 3, "prediction": 2} and record.rejected == {"ngram": 6, "prediction": 0}
    assert (record.num_confirmed, record.num_rejected) == (5, 6)
    assert record.rates["prediction"].mean(0.0) > record.rates["ngram"].mean(0.0)


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
