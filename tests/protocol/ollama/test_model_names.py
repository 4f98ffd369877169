"""served_name: names with and without the tag latest."""

import pytest

from chairlift.protocol.ollama.model_names import served_name


@pytest.mark.parametrize(("name", "served", "found"), [
    ("demo", ("demo",), "demo"),
    ("demo:latest", ("demo",), "demo"),
    ("demo", ("demo:latest",), "demo:latest"),
    ("demo:latest", ("demo", "demo:latest"), "demo:latest"),
    ("chairlift:demo:latest", ("chairlift:demo",), "chairlift:demo"),
    ("demo:7b", ("demo",), "demo:7b"),
    ("other:latest", ("demo",), "other:latest"),
    ("", (), ""),
])  # fmt: skip
def test_a_name_without_a_tag_is_that_of_latest(name: str, served: tuple[str, ...], found: str) -> None:
    assert served_name(name, served) == found
