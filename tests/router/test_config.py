"""RouterConfig: names of policies, headers and cookies that are not valid are rejected."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.config import RouterConfig
from support_shares import for_each


@for_each(("name", "value"), [
    ("policy", "best"), ("session_header", ""), ("session_header", "X-A"), ("session_header", "a b"),
    ("session_cookie", "a=b"), ("session_cookie", "a;"),
])  # fmt: skip
def test_an_invalid_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RouterConfig(**{name: value})  # type: ignore[arg-type]
    assert caught.value.details["option"] == name and repr(value) in caught.value.message


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_times_are_numbers_of_seconds(seconds: float) -> None:
    with pytest.raises(ConfigError, match="empty_grace must be at least 0 seconds"):
        RouterConfig(empty_grace_seconds=seconds)
    with pytest.raises(ConfigError, match="hold_timeout must be at least 0 seconds"):
        RouterConfig(hold_timeout=seconds)


def test_valid_names_are_accepted() -> None:
    config = RouterConfig(policy="lora", session_header="x-a_b", session_cookie="Sid.1", empty_grace_seconds=0.0)
    assert (config.session_header, config.session_cookie) == ("x-a_b", "Sid.1")
