"""ConfigValues: typed reads of config.json."""

from typing import Any

import pytest

from chairlift.bench.planning.config_values import ConfigValues
from chairlift.core.errors import ConfigError
from support_shares import for_each


def test_reads_have_defaults_and_types() -> None:
    content = {"a": 3, "b": 0, "c": True, "d": [1], "dtype": "torch.bfloat16", "model_type": "llama"}
    values = ConfigValues.of({**content, "architectures": ["X", 5]})
    assert (values.size("a"), values.size("x", 7), values.count("b"), values.count("x")) == (3, 7, 0, 0)
    assert (values.flag("c"), values.flag("x"), values.list("d"), values.list("x")) == (True, False, [1], None)
    assert (values.dtype, values.model_type, values.architectures, values.is_part) == (
        "bfloat16",
        "llama",
        ("X",),
        False,
    )
    assert values.optional_size("x") is None and "a" in values and "x" not in values


def test_the_text_part_of_a_model_with_other_inputs_wins() -> None:
    values = ConfigValues.of({"hidden_size": 8, "torch_dtype": "float16", "text_config": {"hidden_size": 4}})
    assert values.size("hidden_size") == 4 and values.dtype == "float16" and values.is_part


@for_each(
    ("method", "content", "message"),
    [
        ("size", {}, "a is missing"), ("size", {"a": True}, "a must be an integer"),
        ("size", {"a": 0}, "a must be an integer between 1"), ("size", {"a": "x"}, "a must be an integer"),
        ("count", {"a": -1}, "a must be an integer"), ("flag", {"a": 1}, "a must be true or false"),
        ("list", {"a": {}}, "a must be a list"),
    ],
)  # fmt: skip
def test_wrong_values_are_errors_that_name_the_field(method: str, content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.json: {message}"):
        getattr(ConfigValues.of(content), method)("a")
