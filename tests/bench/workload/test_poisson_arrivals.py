"""with_poisson_arrivals: arrivals are a Poisson process of the rate, and the prompts stay the same."""

import math
from itertools import pairwise

import pytest

from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.poisson_arrivals import with_poisson_arrivals


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    made = with_poisson_arrivals(generate("uniform", vocab_size=9, count=4000), 20.0)
    gaps = [after.at - before.at for before, after in pairwise(made.items)]
    assert all(gap >= 0 for gap in gaps)
    mean = math.fsum(gaps) / len(gaps)
    spread = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.05, rel=0.06) and spread == pytest.approx(mean, rel=0.08)
    assert with_poisson_arrivals(generate("uniform", vocab_size=9, count=4), 20.0).items == made.items[:4]
    assert [item.prompt_token_ids for item in made.items[:4]] == [
        item.prompt_token_ids for item in generate("uniform", vocab_size=9, count=4).items
    ]
