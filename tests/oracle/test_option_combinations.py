"""Whole runs against transformers: greedy tokens are equal in every combination of factors.

Every case checks that its factors happened: preemptions, cached tokens, freed window blocks, two launches in flight,
aborted requests.
"""

import pytest

from support_oracle import FACTORS, Case, cases, covered_pairs, possible_pairs
from support_oracle_run import check_case
from support_shares import FULL

COUNT = 320
SHARE = 10
"""Cases of `make test`: they cover every value and more than half of the pairs, the first 64 all pairs."""


def test_the_cases_cover_every_pair_of_factors() -> None:
    assert possible_pairs() <= covered_pairs(cases(COUNT))


def test_the_cases_of_make_test_have_every_value_of_every_factor() -> None:
    for name, values in FACTORS.items():
        assert {getattr(case, name) for case in cases(SHARE)} == set(values)


@pytest.mark.share(1)
@pytest.mark.parametrize("case", cases(COUNT if FULL else SHARE), ids=lambda case: f"{case.seed}")
def test_tokens_equal_generate(case: Case) -> None:
    check_case(case)
