"""RequestInfo: one value in each scope, which the first call makes, and no principal before the check of the key."""

from typing import Any

import pytest

from chairlift.web.auth.principal import Principal
from chairlift.web.request_info import SCOPE_KEY, RequestInfo, request_info


def test_a_scope_has_one_value_that_the_first_call_makes() -> None:
    scope: dict[str, Any] = {"type": "http"}
    info = request_info(scope)
    info.user = "bob"
    assert request_info(scope) is info and scope == {"type": "http", SCOPE_KEY: info}
    assert request_info({}) is not info


def test_nothing_is_known_of_a_new_request() -> None:
    info = RequestInfo()
    assert (info.request_id, info.route_path, info.user, info.body_bytes, info.was_submitted) == ("", "", "", 0, False)
    assert info.principal is info.permit is info.response_headers is info.first_token_at is info.trace is None


def test_a_request_without_a_principal_is_not_taken_for_a_client() -> None:
    with pytest.raises(AssertionError, match="AuthMiddleware"):
        _ = RequestInfo().authenticated
    principal = Principal("alice")
    assert RequestInfo(principal=principal).authenticated is principal


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(AttributeError):
        RequestInfo().request_ids = "a"  # type: ignore[attr-defined]
