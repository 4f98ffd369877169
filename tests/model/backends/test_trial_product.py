"""trial_products: each kind of weight is multiplied, and is slower than its instructions alone."""

import pytest

from chairlift.model.backends.trial_product import trial_products
from support_native import instruction_sets, need_native


@pytest.mark.parametrize("name", instruction_sets())
def test_each_kind_of_weight_has_a_rate_below_its_peak(name: str) -> None:
    need_native()
    products = list(trial_products(name))
    assert [each.kind for each in products] == ["bfloat16", "float16", "float32", "int8-channel", "int8"]
    for product in products:
        assert product.rate > 1e6 and product.peak > 1e6
