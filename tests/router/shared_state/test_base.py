"""base.py: amounts of a charge, and the outcomes that scripts name."""

from chairlift.router.shared_state import redis_scripts
from chairlift.router.shared_state.base import ChargeOutcome, TenantCharge


def test_a_charge_and_its_negation_cancel_out() -> None:
    charge = TenantCharge(requests=1, tokens=70, open=1)
    assert charge.negated() == TenantCharge(requests=-1, tokens=-70, open=-1)
    assert charge.negated().negated() == charge


def test_the_charge_script_names_every_outcome_but_unavailable() -> None:
    for outcome in ChargeOutcome:
        assert (f"'{outcome}'" in redis_scripts.CHARGE) == (outcome is not ChargeOutcome.UNAVAILABLE)
