"""model_display_name: built-in names and names of the hub stay; a folder is shown without its path."""

import pytest

from chairlift.cli import model_display_name


@pytest.mark.parametrize(
    ("model", "name"), [("chairlift:demo", "chairlift:demo"), ("owner/name", "owner/name"), (".", None)]
)
def test_the_default_name_of_a_model(model: str, name: str | None) -> None:
    displayed = model_display_name.model_display_name(model)
    assert displayed == name if name is not None else "/" not in displayed and displayed
