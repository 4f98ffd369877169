"""session_key_of, model_member, timeout_seconds: a request's session, the model of its pool, its shorter timeout."""

from typing import Any

from chairlift.router.request_fields_and_upstream_request import model_member, session_key_of, timeout_seconds
from support_shares import for_each


@for_each(("headers", "fields", "key"), [
    ([(b"x-session-id", b"a")], {"user": "u"}, "a"),
    ([(b"cookie", b"other=1; sid=c; x")], {"user": "u"}, "c"),
    ([(b"cookie", b'{"bad": 1}; sid="quoted"')], {}, "quoted"),
    ([(b"cookie", b"sid=; asid=d")], {"user": "u"}, "u"),
    ([(b"x-session-id", b"")], {"user": "u"}, "u"),
    ([], {"user": "u"}, "u"), ([], {"user": 5}, ""), ([], {}, ""),
])  # fmt: skip
def test_the_session_comes_from_header_cookie_or_user(headers: Any, fields: dict[str, Any], key: str) -> None:
    assert session_key_of({"headers": headers}, fields, "x-session-id", "sid") == key


def test_without_a_session_cookie_cookies_do_not_matter() -> None:
    assert session_key_of({"headers": [(b"cookie", b"sid=c")]}, {}, "x-session-id", "") == ""


@for_each(("fields", "pool", "member"), [
    ({"model": "alias"}, "m", {"model": "m"}), ({"model": "m"}, "m", {}), ({}, "m", {"model": "m"}),
    ({"model": ""}, "m", {"model": "m"}), ({}, "", {}),
    ({"model": 5}, "m", {}), ({"model": None}, "m", {"model": "m"}), ({"model": "a"}, "", {}),
])  # fmt: skip
def test_an_alias_is_replaced_and_a_missing_one_added(
    fields: dict[str, Any], pool: str, member: dict[str, Any]
) -> None:
    assert model_member(fields, pool) == member


@for_each(("headers", "fields", "seconds"), [
    ([], {}, None), ([], {"timeout": 2.5}, 2.5), ([(b"x-request-timeout-ms", b"1500")], {"timeout": 2}, 1.5),
    ([(b"x-request-timeout-ms", b"1500")], {"timeout": "x"}, 1.5), ([], {"timeout": 1e300}, None),
    ([], {"timeout": True}, None), ([], {"timeout": -1}, None), ([], {"timeout": 0}, None),
])  # fmt: skip
def test_the_shorter_timeout_counts_and_a_replica_reports_invalid_ones(
    headers: Any, fields: dict[str, Any], seconds: float | None
) -> None:
    assert timeout_seconds({"headers": headers}, fields) == seconds
