"""A pytest plugin for openai-python's generated tests: values that a real server has in place of made-up ones.

The tests of the Responses API send no model and no input, and ask for ids that they have made up. A server that only
checks types accepts that. Here such a request gets a model and an input, and the id of a response that was just made.
"""

import json
import os
import urllib.request
from typing import Any

from openai._base_client import BaseClient

MODEL = os.environ["CHAIRLIFT_SUITE_MODEL"]
REQUIRED = {"model": MODEL, "input": "What is the capital of France?"}
PATHS = ("/responses", "/responses/input_tokens", "/responses/compact")
"""Routes whose bodies get what they lack."""

IDS = ("resp_677efb5139a88190b512bc3fef8e535d", "response_id")
"""Ids that the tests have made up."""


def new_id() -> str:
    """Return the id of a response that the server has stored."""
    url, body = os.environ["TEST_API_BASE_URL"], json.dumps({**REQUIRED, "max_output_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/responses", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["id"])


def with_values(options: Any) -> Any:
    """Return the options of a request with the values of this server."""
    if options.method == "post" and options.url in PATHS:
        return options.model_copy(update={"json_data": {**REQUIRED, **(options.json_data or {})}})
    for made_up in IDS:
        if f"/responses/{made_up}" in options.url:
            return options.model_copy(update={"url": options.url.replace(made_up, new_id())})
    return options


def pytest_configure() -> None:
    build = BaseClient._build_request
    BaseClient._build_request = lambda self, options, **more: build(self, with_values(options), **more)
