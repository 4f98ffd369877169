"""docs/from-transformers.md: its tables have every option of transformers, and it lists the names of the package."""

import re

import chairlift
from chairlift.core.foreign_options import ForeignOption, OptionEffect
from chairlift.llm.transformers_compat.option_table import BATCHING, GENERATION
from support_doc_tables import table
from support_source_tree import ROOT

PAGE = "from-transformers.md"


def option_row(name: str) -> list[str]:
    """Return the row of an option as the page must have it."""
    spec = BATCHING.get(name) or GENERATION[name]
    return [f"`{name}`", _meaning(spec, spec.setting or name)]


def _meaning(spec: ForeignOption, name: str) -> str:
    if spec.effect is OptionEffect.REFUSED:
        accepted = f" ({', '.join(f'`{value!r}`' for value in spec.neutral)})" if spec.neutral else ""
        return f"refused{accepted}: {spec.reason}"
    if spec.effect is OptionEffect.NONE:
        return f"no effect: {spec.reason}" if spec.reason else "no effect, as in transformers"
    assert spec.part is not None
    return f"{spec.part.value}: `{name}`"


def test_the_page_has_every_option_of_transformers_and_its_meaning() -> None:
    assert table(PAGE, "Batching") == [option_row(name) for name in BATCHING]
    assert table(PAGE, "Generation") == [option_row(name) for name in GENERATION]


def test_the_page_lists_the_names_of_the_package() -> None:
    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    names = re.findall(r"`(\w+)`", text.partition("has are")[2].partition("\n\n")[0])
    assert len(names) == 11 and all(getattr(chairlift, name) for name in names)
