"""Variables of chat templates: which ones a template reads, and which of them a request may set."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from jinja2 import meta

from chairlift.core.chat_template_names_and_limits import (
    MAX_VARIABLES,
    MAX_VARIABLES_CHARS,
    REQUEST_FIELDS,
    RESERVED_VARIABLES,
)
from chairlift.core.errors import InvalidRequest
from chairlift.core.validation import invalid_param
from chairlift.text.jinja_sandbox import ChatEnvironment

SWITCHES = ("enable_thinking", "thinking")
"""Variables with which templates switch reasoning on and off."""


def find_variables(environment: ChatEnvironment, source: str) -> frozenset[str]:
    """Return the names of all variables that a template reads."""
    return frozenset(meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys())


def settable_variables(names: Collection[str], named_tokens: Collection[str]) -> frozenset[str]:
    """Return those of the names that a request may set."""
    return frozenset(names) - REQUEST_FIELDS - RESERVED_VARIABLES - set(named_tokens)


def check_variables(value: Any, named_tokens: Collection[str], param: str = "chat_template_kwargs") -> dict[str, Any]:
    """Return a request's template variables. Raises InvalidRequest for too many, or one that it may not set."""
    if not isinstance(value, Mapping):
        raise invalid_param(param, f"must be an object, got {type(value).__name__}")
    if len(value) > MAX_VARIABLES:
        raise invalid_param(param, f"has {len(value)} variables, the limit is {MAX_VARIABLES}")
    for name in value:
        if name in REQUEST_FIELDS:
            raise InvalidRequest(f"{param}.{name} must be a field of the request itself", param=param)
        if name in RESERVED_VARIABLES or name in named_tokens:
            raise InvalidRequest(f"{param}.{name} cannot be set: the server sets it, or it is no variable", param=param)
    try:
        num_chars = len(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_param(param, f"must be JSON data: {str(error)[:200]}") from None
    if num_chars > MAX_VARIABLES_CHARS:
        raise invalid_param(param, f"has {num_chars} characters as JSON, the limit is {MAX_VARIABLES_CHARS}")
    return dict(value)


_NEAREST_EFFORTS = {"none": ("low",), "minimal": ("low",), "xhigh": ("high",), "max": ("xhigh", "high")}
"""Reasoning effort that few templates name -> those to use in its place, the nearest first."""


def effort_variables(effort: str, variables: Collection[str], template: str) -> dict[str, Any]:
    """Return the variables that tell a template this reasoning effort; empty if it reads none of them.

    A template that does not name `none`, `minimal`, `xhigh` or `max` itself gets the nearest one that it names, or low
    or high.
    """
    found: dict[str, Any] = {name: effort != "none" for name in SWITCHES if name in variables}
    if "reasoning_effort" in variables:
        candidates = (effort, *_NEAREST_EFFORTS.get(effort, ()))
        named = (each for each in candidates if f"'{each}'" in template or f'"{each}"' in template)
        found["reasoning_effort"] = next(named, candidates[-1])
    return found
