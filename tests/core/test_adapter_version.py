"""AdapterVersion: no adapter is number 0, which no version has."""

from chairlift.core.adapter_version import NO_ADAPTER, AdapterVersion


def test_no_adapter_has_the_number_zero_and_no_digest() -> None:
    assert NO_ADAPTER == AdapterVersion(0, "") != AdapterVersion(1, "")
