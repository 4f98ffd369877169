"""trial_product: a product of each kind of weight, and the sentence about it."""

import pytest

from chairlift.model.backends.trial_product import TrialProduct, trial_product
from chairlift.model.kernels.cpu.weight_kinds import KINDS
from support_native import instruction_sets, need_native


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", instruction_sets())
def test_each_kind_of_weight_has_a_rate_and_a_peak(name: str, kind: str) -> None:
    need_native()
    product = trial_product(kind, name, 2)
    assert product.kind == kind and product.rate > 1e6 and product.peak > 1e6


def test_the_rate_is_shown_as_a_share_of_the_peak() -> None:
    summary = str(TrialProduct("bfloat16", 51.2e9, 58.7e9))
    assert summary == "51 GMAC/s a thread, 87% of what its instructions can do"
    assert str(TrialProduct("int8", 61.7e9, 0.0)).startswith("62 GMAC/s a thread, an unknown share")
