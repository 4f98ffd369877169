"""matching_name: names with Ollama's tag and without it."""

from chairlift.core.model_names import matching_name
from support_shares import for_each


@for_each(("name", "names", "expected"), [
    ("m", ("m",), "m"), ("m:latest", ("m",), "m"), ("m", ("m:latest",), "m:latest"),
    ("m:latest", ("m", "m:latest"), "m:latest"), ("m", ("m:latest", "m"), "m"), ("m:7b", ("m",), ""),
    ("m:latest:latest", ("m",), ""), ("n", ("m",), ""), ("", ("m",), ""), ("m", (), ""),
])  # fmt: skip
def test_a_name_without_a_tag_is_that_of_latest(name: str, names: tuple[str, ...], expected: str) -> None:
    assert matching_name(name, names) == expected
