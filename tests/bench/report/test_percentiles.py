"""Percentiles: equal numpy's, are None without samples, and downsampling keeps the ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.bench.report.percentiles import downsample, percentile, summarize

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


@given(SAMPLES, st.sampled_from([0.0, 1.0, 50.0, 90.0, 99.0, 100.0]))
def test_a_percentile_is_the_one_of_numpy(samples: list[float], percent: float) -> None:
    assert percentile(sorted(samples), percent) == pytest.approx(np.percentile(samples, percent), rel=1e-9, abs=1e-9)


@given(SAMPLES)
def test_a_description_has_the_mean_and_three_percentiles(samples: list[float]) -> None:
    summary = summarize(iter(samples))
    assert list(summary) == ["mean", "p50", "p90", "p99"]
    expected = [np.mean(samples), *np.percentile(samples, [50, 90, 99])]
    assert list(summary.values()) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_no_sample_has_no_description() -> None:
    assert set(summarize([]).values()) == {None}


def test_thinning_keeps_the_ends_the_order_and_the_number() -> None:
    assert downsample([3.0, 1.0, 2.0], 5) == [1.0, 2.0, 3.0]
    kept = downsample([float(value) for value in range(999, -1, -1)], 100)
    assert len(kept) == 100 and kept == sorted(kept)
    assert (kept[0], kept[-1]) == (0.0, 999.0) and abs(kept[50] - 504.5) < 10
