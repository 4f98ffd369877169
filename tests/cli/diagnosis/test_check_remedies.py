"""Every check has its section of docs/troubleshooting.md."""

import re

import pytest

from chairlift.cli.diagnosis.check_remedies import CHECKS, PAGE, anchor
from support_source_tree import ROOT


@pytest.mark.parametrize(("heading", "link"), [("A key, or two?", "a-key-or-two"), ("Out-of memory", "out-of-memory")])
def test_anchors_are_those_of_markdown(heading: str, link: str) -> None:
    assert anchor(heading) == link


def test_every_check_has_its_section() -> None:
    headings = set(re.findall(r"^## (.+)$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE))
    assert {check.section for check in CHECKS.values()} <= headings
