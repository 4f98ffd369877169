"""arrival_times, with_arrival_times: times depend on the seed alone; requests end by time or by count."""

from itertools import islice, pairwise, repeat

import pytest

from chairlift.bench.server.api_requests import PreparedRequest
from chairlift.bench.server.arrival_times import arrival_times, with_arrival_times
from chairlift.bench.server.loadgen import EVEN, POISSON

SHOT = PreparedRequest(0.0, b"GET / HTTP/1.1\r\n\r\n", 0)


def test_due_times_hang_on_the_seed_alone() -> None:
    first, again, other = (list(islice(arrival_times(50.0, POISSON, seed), 4000)) for seed in ("1 0", "1 0", "1 1"))
    assert first == again != other
    gaps = [after - before for before, after in pairwise(first)]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert sum(gap > 1 / 50 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # exp(-1)
    assert list(islice(arrival_times(4.0, EVEN, ""), 3)) == [0.25, 0.5, 0.75]


def test_shots_are_bounded_by_time_and_by_count() -> None:
    def at(seconds: float, count: int | None) -> list[float]:
        return [shot.at for shot in with_arrival_times(repeat(SHOT), arrival_times(1.0, EVEN, ""), seconds, count)]

    assert at(3.5, None) == [1.0, 2.0, 3.0] == at(99.0, 3) and at(2.0, 3) == [1.0]
    shots = iter([SHOT, SHOT, SHOT])
    assert len(list(with_arrival_times(shots, arrival_times(1.0, EVEN, ""), 2.5, None))) == 2 and len(list(shots)) == 1
