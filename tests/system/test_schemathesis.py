"""schemathesis over /openapi.json of a real server: what it answers is documented, and never the server's own fault.

Left out by name: /admin/drain with the admin's key, which ends the server (tests/system/test_faults.py does that).
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
from support_process import PATIENCE, wait_until
from support_server import ADMIN_KEY, COMPLETIONS, TESTS, Server, real_server

FULL = os.environ.get("CHAIRLIFT_FULL") == "1"
PHASES = "examples,coverage,fuzzing,stateful" if FULL else "fuzzing,stateful"
EXAMPLES = 80 if FULL else 12
"""Of an operation, besides those of the coverage phase."""

LEAST = 2000 if FULL else 150
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance",
    "missing_required_header", "ignored_auth", "is_accepted_or_explained", "a_stream_has_an_end",
)  # fmt: skip
API_KEY = "the-key-of-the-api"
SMALL = ("--max-model-len", "96", "--num-blocks", "1024")
"""A context in which an answer is over soon, and a prompt soon too long."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with real_server(*SMALL, CHAIRLIFT_ADMIN_KEY=ADMIN_KEY) as running:
        yield running


def schemathesis(folder: Path, url: str, *options: str) -> dict[str, Any]:
    """Run it over the document in the folder, always with the same examples; returns its report."""
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", str(folder / "openapi.json"), "--url", url, "--no-color",
         "--seed", "1", "--no-shrink", "--generation-database", "none", "--continue-on-failure",
         "--request-timeout", "60", "--checks", ",".join(CHECKS),
         "--report", "json", "--report-json-path", str(report), *options],
        cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), "SCHEMATHESIS_HOOKS": "support_schemathesis"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    assert result["complete"] and not result["failures"] and not result["errors"]
    return result


def write_document(folder: Path, url: str, key: str) -> None:
    response = httpx.get(url + "/openapi.json", headers={"authorization": f"Bearer {key}"})
    (folder / "openapi.json").write_bytes(response.raise_for_status().content)


@pytest.mark.timeout(3600 if FULL else 300)
def test_everything_with_an_admins_key(tmp_path: Path, server: Server) -> None:
    write_document(tmp_path, server.url, ADMIN_KEY)
    result = schemathesis(
        tmp_path, server.url, "--phases", PHASES, "-n", str(EXAMPLES), "--exclude-path", "/admin/drain",
        "-H", f"Authorization: Bearer {ADMIN_KEY}",
    )  # fmt: skip
    assert result["test_cases"]["generated"] >= LEAST
    assert result["operations"]["tested"] == result["operations"]["total"] - 1
    wait_until(server.is_idle)
    assert server.metric("engine_restarts_total") == 0 and server.metric("requests_total") > 0


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_everything_without_a_key_where_keys_are_needed(tmp_path: Path) -> None:
    keys = {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY, "CHAIRLIFT_API_KEY": API_KEY}
    with real_server(*SMALL, "--public-metrics", **keys) as server:
        write_document(tmp_path, server.url, API_KEY)
        result = schemathesis(tmp_path, server.url, "--phases", "fuzzing", "-n", "40")
        assert result["operations"]["tested"] == result["operations"]["total"]
        assert server.metric("requests_total") == 0 and httpx.get(server.url + "/readyz").status_code == 200


# -- the checks themselves ---------------------------------------------------------------------------------------------


def answered(status: int = 200, *, text: str = "", key: str = ADMIN_KEY, **error: Any) -> Any:
    """Return an answer as the checks see it."""
    said = {"error": {"param": None, "code": "invalid_request", "message": "", **error}}
    kind = "application/json" if error else "text/event-stream"
    return SimpleNamespace(
        status_code=status, text=text, headers={"content-type": [kind]}, json=lambda: said,
        request=SimpleNamespace(headers={"authorization": f"Bearer {key}"}),
    )  # fmt: skip


def asked(*, path: str = COMPLETIONS, positive: bool = True, **body: Any) -> Any:
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
        hooks.a_stream_has_an_end(None, answered(text=text), asked())


@pytest.mark.parametrize(("text", "body"), [
    ("data: {}\n\ndata: [DONE]\n\n", {}), (EVENT % ("no token is left", "no_allowed_token"), {"choice": ["a"]}),
    (EVENT % ("the request did not finish within its timeout of 0.5 s", "timeout"), {}),
])  # fmt: skip
def test_a_stream_may_end_in_these_ways(text: str, body: dict[str, Any]) -> None:
    hooks.a_stream_has_an_end(None, answered(text=text), asked(**body))


@pytest.mark.parametrize(("response", "case"), [
    (answered(400, param="n", message="n must be between 1 and 128, got 2"), asked(n=2)),
    (answered(400, param="prompt", message="prompt has 0 tokens, at least 1 is needed, and more"), asked()),
    (answered(400, param="temperature", message="temperature must be an integer, got float"), asked()),
    (answered(404, code="model_not_found", message="x"), asked()), (answered(500, code="x", message="x"), asked()),
    (answered(401, code="invalid_api_key", message="x"), asked()), (answered(429, code="overloaded"), asked()),
    (answered(400, code="no_allowed_token", message="x"), asked()),
])  # fmt: skip
def test_a_refusal_that_nothing_explains_is_found(response: Any, case: Any) -> None:
    with pytest.raises(AssertionError, match="no reason explains"):
        hooks.is_accepted_or_explained(None, response, case)
    hooks.is_accepted_or_explained(None, response, asked(positive=False))


@pytest.mark.parametrize(("response", "case"), [
    (answered(400, param="prompt", message="prompt has 0 tokens, at least 1 is needed"), asked()),
    (answered(401, key="another", code="invalid_api_key"), asked()),
    (answered(404, code="not_found"), asked(path="/admin/requests/{id}")), (answered(200), asked()),
    (answered(408, code="timeout", message="the request did not finish within its timeout of 1e-05 s"), asked()),
])  # fmt: skip
def test_a_refusal_may_have_these_reasons(response: Any, case: Any) -> None:
    hooks.is_accepted_or_explained(None, response, case)


# -- what it found -----------------------------------------------------------------------------------------------------


CONTRADICTIONS: list[dict[str, Any]] = [
    {"allowed_token_ids": [300], "logit_bias": {"300": -100}},
    {"choice": ["a"], "allowed_token_ids": [5]},
]


@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
@pytest.mark.parametrize("stream", [False, True])
def test_parameters_that_exclude_every_token_are_the_requests_own_fault(
    server: Server, contradiction: dict[str, Any], stream: bool
) -> None:
    body = {"model": "chairlift:demo", "prompt": "a", "stream": stream, **contradiction}
    response = httpx.post(server.url + COMPLETIONS, json=body, timeout=PATIENCE)
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
    response = httpx.post(server.url + COMPLETIONS, json=body, timeout=PATIENCE)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == field, response.text
    assert error["message"].startswith(field) and "structured" not in error["message"]
