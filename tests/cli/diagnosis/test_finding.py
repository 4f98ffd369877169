"""A finding leads to its section of docs/troubleshooting.md, and every check has one."""

import re

import pytest

from chairlift.cli.diagnosis.finding import CHECKS, ERROR, Finding, anchor
from support_source_tree import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"


def test_a_finding_has_its_remedy_and_its_section() -> None:
    finding = Finding(check="cache_full", level=ERROR, server="http://a", what="98 % \n used").as_json()
    assert finding["what"] == "98 % used" and finding["do"] == CHECKS["cache_full"].remedy
    assert finding["see"] == "docs/troubleshooting.md#the-kv-cache-is-full"


@pytest.mark.parametrize(("heading", "link"), [("A key, or two?", "a-key-or-two"), ("Out-of memory", "out-of-memory")])
def test_anchors_are_those_of_markdown(heading: str, link: str) -> None:
    assert anchor(heading) == link


def test_every_check_has_its_section() -> None:
    headings = set(re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {check.section for check in CHECKS.values()} <= headings
