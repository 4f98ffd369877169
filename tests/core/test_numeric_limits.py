"""Bounds that several parts check stand once, and those of HTTP lie within the general ones."""

import ast
import re

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.numeric_limits import (
    MAX_HTTP_TIMEOUT_SECONDS,
    MAX_INT32,
    MAX_PRIORITY,
    MAX_TIMEOUT_SECONDS,
    MIN_HTTP_PRIORITY,
)
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import MAX_TOKENS
from chairlift.protocol.request_fields import CHAT
from chairlift.protocol.router_headers import MAX_TIMEOUT_MS
from support_request_bodies import completion
from support_source_tree import SOURCES, shown, tree_of

C_INT = {"src/chairlift/model/device/huge_page_tensors.py": "mallopt takes an int of C"}
"""Modules that have 2**31 - 1 for another reason."""


def test_the_bounds_of_http_lie_within_those_of_a_request() -> None:
    assert -MAX_PRIORITY <= MIN_HTTP_PRIORITY <= MAX_PRIORITY and MAX_HTTP_TIMEOUT_SECONDS <= MAX_TIMEOUT_SECONDS
    assert MAX_TIMEOUT_MS == 1000 * MAX_HTTP_TIMEOUT_SECONDS and MAX_TOKENS == MAX_INT32


@pytest.mark.parametrize(("priority", "timeout"), [
    (MIN_HTTP_PRIORITY, MAX_HTTP_TIMEOUT_SECONDS), (MAX_PRIORITY, 1e-3),
])  # fmt: skip
def test_what_http_allows_is_documented_parsed_and_taken_by_the_engine(priority: int, timeout: float) -> None:
    request = completion(priority=priority, timeout=timeout)
    assert (request.priority, request.timeout) == (priority, timeout)
    GenerateRequest(
        request_id="r", prompt_token_ids=(1,), params=request.params, priority=request.priority, timeout=request.timeout
    )
    schema = CHAT["priority"].schema
    assert schema["minimum"] <= priority <= schema["maximum"] and timeout <= CHAT["timeout"].schema["maximum"]


@pytest.mark.parametrize(("name", "value"), [
    ("priority", MIN_HTTP_PRIORITY - 1), ("priority", MAX_PRIORITY + 1),
    ("timeout", 0), ("timeout", MAX_HTTP_TIMEOUT_SECONDS + 1),
])  # fmt: skip
def test_what_http_does_not_allow_is_rejected_with_the_field(name: str, value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} must be"):
        completion(**{name: value})


def test_the_largest_int32_stands_in_one_place() -> None:
    found = [
        shown(path)
        for path in SOURCES
        if re.search(r"\b31\b", path.read_text(encoding="utf-8"))  # the others need not be parsed
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and ast.unparse(node) == "2 ** 31 - 1"
    ]
    assert sorted(found) == ["src/chairlift/core/numeric_limits.py", *C_INT]
