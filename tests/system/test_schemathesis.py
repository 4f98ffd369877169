"""schemathesis over /openapi.json of a real server: every response is documented.

The run leaves out /admin/drain with the admin key, which ends the server. tests/system/test_faults_shutdown.py has it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import support_schemathesis as hooks
from support_process import TIMEOUT_SECONDS, wait_until
from support_router_process import direct_or_routed
from support_server import ADMIN_KEY, COMPLETIONS, TESTS, Server, real_server
from support_shares import FULL, for_each

PHASES = "examples,coverage,fuzzing,stateful" if FULL else "fuzzing,stateful"
EXAMPLES = 80 if FULL else 8
"""Number of examples per operation, besides those of the coverage phase."""

MIN_CASES = 2000 if FULL else 100
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance",
    "missing_required_header", "ignored_auth", "is_accepted_or_explained", "a_stream_has_an_end",
)  # fmt: skip
ENDING_PATHS = ("/admin/live", "/admin/drain", "/admin/replicas/drain", "/admin/replicas/weight")
"""Operations that end the server, or leave a router without its only replica where a sequence of calls names it."""

CONFIGURATION = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 422, 428, 429, "5xx"]
"""
"""schemathesis' own statuses of a rejection, and those of a wrong body that is also too large, or has no time."""

API_KEY = "the-key-of-the-api"
SMALL = ("--max-model-len", "96", "--num-blocks", "1024")
"""Options for a short context, in which outputs are short and prompts are often too long."""


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    # A late error has the status of its comment: 200.
    with real_server(*SMALL, "--sse-ping-interval", "60", CHAIRLIFT_ADMIN_KEY=ADMIN_KEY) as process:
        yield process


@pytest.fixture(scope="module", params=["direct", pytest.param("router", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest, replica: Server) -> Iterator[Server]:
    """A replica, or a router in front of it."""
    with direct_or_routed(request.param, replica, CHAIRLIFT_ADMIN_KEY=ADMIN_KEY) as server:
        yield server


def run_schemathesis(folder: Path, url: str, *options: str) -> dict[str, Any]:
    """Run schemathesis with the document in the folder and fixed examples; returns its report."""
    report = folder / "report.json"
    (folder / "schemathesis.toml").write_text(CONFIGURATION, encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", str(folder / "openapi.json"), "--url", url, "--no-color",
         "--seed", "1", "--no-shrink", "--generation-database", "none", "--continue-on-failure",
         "--request-timeout", "60", "--checks", ",".join(CHECKS),
         "--report", "json", "--report-json-path", str(report), *options],
        cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]),
             "SCHEMATHESIS_HOOKS": "support_schemathesis"},
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    assert result["complete"] and not result["failures"] and not result["errors"]
    return result


def write_document(folder: Path, url: str, key: str) -> None:
    """Write a server's document without its examples, beside which schemathesis sends few other values of a field."""
    response = httpx.get(url + "/openapi.json", headers={"authorization": f"Bearer {key}"})
    document = response.raise_for_status().json()
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.get("requestBody", {}).get("content", {}).get("application/json", {}).pop("example", None)
    (folder / "openapi.json").write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.full
@pytest.mark.timeout(3600 if FULL else 300)
def test_everything_with_an_admins_key(tmp_path: Path, server: Server, replica: Server) -> None:
    write_document(tmp_path, server.url, ADMIN_KEY)
    admin = ("-H", f"Authorization: Bearer {ADMIN_KEY}")
    excluded = [word for path in ENDING_PATHS for word in ("--exclude-path", path)]
    result = run_schemathesis(tmp_path, server.url, "--phases", PHASES, "-n", str(EXAMPLES), *excluded, *admin)
    assert result["test_cases"]["generated"] >= MIN_CASES
    paths = json.loads((tmp_path / "openapi.json").read_bytes())["paths"].keys()
    num_excluded = len(paths & {*ENDING_PATHS})
    assert result["operations"]["tested"] == result["operations"]["total"] - num_excluded
    if server is not replica:
        one_by_one = ("--phases", "examples,coverage,fuzzing", "--include-path-regex", "/admin/replicas/")
        result = run_schemathesis(tmp_path, server.url, "-n", str(EXAMPLES), *one_by_one, *admin)
        assert result["operations"]["tested"] == sum(path.startswith("/admin/replicas/") for path in paths) >= 5
    wait_until(replica.is_idle)
    assert replica.metric("engine_restarts_total") == 0 and server.metric("requests_finished_total") > 0


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_everything_without_a_key_where_keys_are_needed(tmp_path: Path) -> None:
    keys = {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY, "CHAIRLIFT_API_KEY": API_KEY}
    with real_server(*SMALL, "--public-metrics", **keys) as server:
        write_document(tmp_path, server.url, API_KEY)
        result = run_schemathesis(tmp_path, server.url, "--phases", "fuzzing", "-n", "40")
        assert result["operations"]["tested"] == result["operations"]["total"]
        assert server.metric("requests_finished_total") == 0 and httpx.get(server.url + "/readyz").status_code == 200


# -- the checks themselves ---------------------------------------------------------------------------------------------


def fake_response(status: int = 200, *, text: str = "", key: str = ADMIN_KEY, **error: Any) -> Any:
    """Return a response as the checks get it."""
    body = {"error": {"param": None, "code": "invalid_request", "message": "", **error}}
    content_type = "application/json" if error else "text/event-stream"
    return SimpleNamespace(
        status_code=status, text=text, headers={"content-type": [content_type]}, json=lambda: body,
        request=SimpleNamespace(headers={"authorization": f"Bearer {key}"}),
    )  # fmt: skip


def fake_case(*, path: str = COMPLETIONS, positive: bool = True, **body: Any) -> Any:
    mode = SimpleNamespace(is_positive=positive)
    meta = SimpleNamespace(generation=SimpleNamespace(mode=mode))
    return SimpleNamespace(meta=meta, body=body, operation=SimpleNamespace(path=path))


EVENT = 'event: error\ndata: {"error": {"message": "%s", "type": "t", "param": null, "code": "%s"}}\n\n'


@pytest.mark.parametrize("text", [
    "", "data: {}\n\n", "data: [DONE]\n\ndata: {}\n\n", EVENT % ("the engine stopped", "engine_dead"),
    "data: {}\n\n" + EVENT % ("no token is left", "no_allowed_token"),
])  # fmt: skip
def test_a_stream_without_an_explained_end_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        hooks.a_stream_has_an_end(None, fake_response(text=text), fake_case())


@pytest.mark.parametrize(("text", "body"), [
    ("data: {}\n\ndata: [DONE]\n\n", {}), ("event: progress\ndata: {}\n\nevent: response\ndata: {}\n\n", {}),
    (EVENT % ("no token is left", "no_allowed_token"), {"choice": ["a"]}),
    (EVENT % ("the request did not finish within its timeout of 0.5 s", "timeout"), {}),
])  # fmt: skip
def test_a_stream_may_end_in_these_ways(text: str, body: dict[str, Any]) -> None:
    hooks.a_stream_has_an_end(None, fake_response(text=text), fake_case(**body))


@pytest.mark.parametrize(("text", "is_explained"), [
    ('{"done":false}\n{"done":true}\n', True), ('{"done":true}\n{"done":false,"error":"x"}\n', False),
    ('{"error":"the engine stopped"}\n', False),
    ('{"error":"the request did not finish within its timeout of 0.5 s"}\n', True),
])  # fmt: skip
def test_the_end_of_a_stream_of_lines(text: str, is_explained: bool) -> None:
    response = fake_response(text=text)
    response.headers["content-type"] = ["application/x-ndjson"]
    if is_explained:
        hooks.a_stream_has_an_end(None, response, fake_case())
        return
    with pytest.raises(AssertionError, match="no reason explains"):
        hooks.a_stream_has_an_end(None, response, fake_case())


@pytest.mark.parametrize(("text", "is_explained"), [
    ("top_logprobs needs logprobs to be true", True), ("system is bad", False),
    ("format: invalid schema", True), ("format must be json or a JSON Schema, got 'x'", False),
])  # fmt: skip
def test_an_error_that_is_a_text_begins_with_its_field(text: str, is_explained: bool) -> None:
    response = fake_response(400)
    response.json = lambda: {"error": text}
    if is_explained:
        hooks.is_accepted_or_explained(None, response, fake_case())
        return
    with pytest.raises(AssertionError, match="no reason explains"):
        hooks.is_accepted_or_explained(None, response, fake_case())


@for_each(("response", "case"), [
    (fake_response(400, param="n", message="n must be between 1 and 128, got 2"), fake_case(n=2)),
    (fake_response(400, param="prompt", message="prompt has 0 tokens, at least 1 is needed, and more"), fake_case()),
    (fake_response(400, param="temperature", message="temperature must be an integer, got float"), fake_case()),
    (fake_response(404, code="model_not_found", message="x"), fake_case()),
    (fake_response(500, code="x", message="x"), fake_case()),
    (fake_response(401, code="invalid_api_key", message="x"), fake_case()),
    (fake_response(429, code="overloaded"), fake_case()),
    (fake_response(400, code="no_allowed_token", message="x"), fake_case()),
])  # fmt: skip
def test_a_refusal_that_nothing_explains_is_found(response: Any, case: Any) -> None:
    with pytest.raises(AssertionError, match="no reason explains"):
        hooks.is_accepted_or_explained(None, response, case)
    hooks.is_accepted_or_explained(None, response, fake_case(positive=False))


@pytest.mark.parametrize(("response", "case"), [
    (fake_response(400, param="prompt", message="prompt has 0 tokens, at least 1 is needed"), fake_case()),
    (fake_response(401, key="another", code="invalid_api_key"), fake_case()),
    (fake_response(404, code="not_found"), fake_case(path="/admin/requests/{id}")), (fake_response(200), fake_case()),
    (fake_response(408, code="timeout", message="the request did not finish within its timeout of 1e-05 s"),
     fake_case()),
])  # fmt: skip
def test_a_refusal_may_have_these_reasons(response: Any, case: Any) -> None:
    hooks.is_accepted_or_explained(None, response, case)


# -- regressions -------------------------------------------------------------------------------------------------------


CONTRADICTIONS: list[dict[str, Any]] = [
    {"allowed_token_ids": [300], "logit_bias": {"300": -100}},
    {"choice": ["a"], "allowed_token_ids": [5]},
]


@pytest.mark.share(1)
@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
@pytest.mark.parametrize("stream", [False, True])
def test_parameters_that_exclude_every_token_are_the_requests_own_fault(
    server: Server, contradiction: dict[str, Any], stream: bool
) -> None:
    body = {"model": "chairlift:demo", "prompt": "a", "stream": stream, **contradiction}
    response = httpx.post(server.url + COMPLETIONS, json=body, timeout=TIMEOUT_SECONDS)
    assert response.status_code == 400 and response.json()["error"]["code"] == "no_allowed_token", response.text
    assert response.headers["content-type"] == "application/json"


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"regex": "(("}, "regex"), ({"grammar": "u"}, "grammar"), ({"grammar": "start: \"a\" |||| :"}, "grammar"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "banana"}}}}, "response_format"),
]  # fmt: skip


@pytest.mark.parametrize(("nonsense", "field"), NONSENSE)
def test_a_structure_that_means_nothing_is_refused_by_the_name_of_its_field(
    server: Server, nonsense: dict[str, Any], field: str
) -> None:
    body = {"model": "chairlift:demo", "prompt": "a", **nonsense}
    response = httpx.post(server.url + COMPLETIONS, json=body, timeout=TIMEOUT_SECONDS)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field, response.text
    assert error["message"].startswith(field) and "structured" not in error["message"]
