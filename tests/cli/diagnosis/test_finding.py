"""A finding has its remedy, and leads to its section of docs/troubleshooting.md."""

from chairlift.cli.diagnosis.check_remedies import CHECKS
from chairlift.cli.diagnosis.finding import ERROR, Finding


def test_a_finding_has_its_remedy_and_its_section() -> None:
    finding = Finding(check="cache_full", level=ERROR, server="http://a", what="98 % \n used").as_json()
    assert finding["what"] == "98 % used" and finding["do"] == CHECKS["cache_full"].remedy
    assert finding["see"] == "docs/troubleshooting.md#the-kv-cache-is-full"
