"""/openapi.json: it is OpenAPI, names every route and field, and accepts and refuses what the server does."""

import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import jsonschema
import orjson
import pytest
from jsonschema import Draft202012Validator

from chairlift import __version__
from chairlift.core.errors import InvalidRequest, NotFound
from chairlift.protocol.request_fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Effect
from chairlift.server.app import OPEN, _routes
from chairlift.server.config import ServerConfig
from chairlift.server.openai.parse_request import read_chat, read_completion
from chairlift.server.openapi import CONNECTIONS, document, page
from chairlift.server.replica import Replica
from chairlift.text.tool_parser import HERMES
from chairlift.web.auth import read_keys
from chairlift.web.error_responses import _TABLE, error_body
from support_server import ADMIN_KEY, HELLO, MODEL, open_server, run
from support_services import fake_service

DOCUMENT = document()
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION_BODY = {"model": "m", "prompt": "x"}


def body_schema(path: str) -> dict[str, Any]:
    result: dict[str, Any] = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return result


def schemas(value: Any) -> Iterator[Any]:
    """Yield every schema of the document."""
    if isinstance(value, dict):
        if isinstance(value.get("schema"), dict):
            yield value["schema"]
        for each in value.values():
            yield from schemas(each)
    elif isinstance(value, list):
        for each in value:
            yield from schemas(each)


# -- the document ------------------------------------------------------------------------------------------------------


def test_the_document_is_json_and_names_its_version() -> None:
    assert json.loads(orjson.dumps(DOCUMENT)) == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"] == {"title": "Chairlift", "version": __version__, "description": CONNECTIONS}
    assert set(DOCUMENT) <= {"openapi", "info", "servers", "paths", "components", "security", "tags"}


def test_every_operation_is_one_of_openapi() -> None:
    assert OPERATIONS
    for path, method, operation in OPERATIONS:
        assert path.startswith("/") and method in METHODS
        assert set(operation) <= {"summary", "operationId", "parameters", "requestBody", "responses", "security"}
        assert operation["summary"].strip()
        assert ("requestBody" in operation) <= (method == "post")
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status)
            assert set(response) <= {"description", "content", "headers", "links"} and response["description"]
            assert "x-request-id" in response["headers"] and ("links" in response) <= status.startswith("2")
            for kind, media in response.get("content", {}).items():
                assert re.fullmatch(r"[a-z]+/[a-z-]+", kind) and set(media) == {"schema"}
        assert sum(status.startswith("2") for status in operation["responses"]) == 1


def test_every_place_in_a_path_is_a_parameter() -> None:
    for path, _, operation in OPERATIONS:
        parameters = [each for each in operation.get("parameters", []) if each["in"] == "path"]
        assert re.findall(r"{(\w+)}", path) == [each["name"] for each in parameters]
        assert all(each["required"] is True and each["schema"] for each in parameters)


def test_every_link_leads_to_an_operation() -> None:
    names = {operation["operationId"]: operation for _, _, operation in OPERATIONS if "operationId" in operation}
    links = [link for _, _, operation in OPERATIONS for each in operation["responses"].values()
             for link in each.get("links", {}).values()]  # fmt: skip
    assert {link["operationId"] for link in links} == set(names)
    for link in links:
        there = {each["name"] for each in names[link["operationId"]].get("parameters", [])}
        assert set(link.get("parameters", {})) == there


def test_only_the_administration_cannot_do_without_a_key() -> None:
    needs = {path for path, _, operation in OPERATIONS if operation.get("security") == [{"key": []}]}
    assert needs == {path for path, _, _ in OPERATIONS if path.startswith("/admin/")}


def test_a_server_names_its_models() -> None:
    operation = document(("a", "b"))["paths"]
    for path, kind in (("/v1/chat/completions", "post"), ("/v1/completions", "post"), ("/tokenize", "post")):
        schema = operation[path][kind]["requestBody"]["content"]["application/json"]["schema"]
        for name, fits in (("a", True), ("b", True), ("c", False)):
            assert Draft202012Validator(schema["properties"]["model"]).is_valid(name) is fits
    assert operation["/v1/models/{id}"]["get"]["parameters"][0]["schema"]["enum"] == ["a", "b"]


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    result = [*schemas(DOCUMENT["paths"]), *DOCUMENT["components"]["schemas"].values()]
    assert len(result) > len(OPERATIONS)
    for schema in result:
        Draft202012Validator.check_schema(schema)
    for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps(DOCUMENT)):
        place: Any = DOCUMENT
        assert reference.startswith("#/"), "nothing is fetched"
        for name in reference[2:].split("/"):
            place = place[name]
    schemes = DOCUMENT["components"]["securitySchemes"]
    assert all(set(each) <= set(schemes) for each in DOCUMENT["security"])


def test_every_route_of_the_server_is_in_it_and_no_other() -> None:
    async def drain() -> None: ...

    replica = Replica(ServerConfig(served_names=("m",)))
    there = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in _routes(replica, drain) for method in route.methods or () if method != "HEAD"
    }  # fmt: skip
    assert {(path, method) for path, method, _ in OPERATIONS} == there


STATUSES = {
    "post /v1/chat/completions": "200 400 401 404 405 408 413 415 429 500 503",
    "post /v1/completions": "200 400 401 404 405 408 413 415 429 500 503",
    "get /v1/models": "200 401 405 503",
    "get /v1/models/{id}": "200 401 404 405 503",
    "post /tokenize": "200 400 401 404 405 408 413 415 503",
    "post /detokenize": "200 400 401 404 405 408 413 415 503",
    "get /livez": "200 405",
    "get /readyz": "200 405 503",
    "get /health": "200 405 503",
    "get /metrics": "200 401 405",
    "get /load": "200 401 405",
    "get /docs": "200 401 405",
    "get /openapi.json": "200 401 405",
    "post /admin/drain": "202 401 403 404 405",
    "get /admin/state": "200 401 403 404 405 503",
    "get /admin/requests/{id}": "200 401 403 404 405 503",
}


def test_no_operation_names_a_status_that_it_cannot_have() -> None:
    assert {f"{method} {path}": " ".join(operation["responses"]) for path, method, operation in OPERATIONS} == STATUSES


def test_every_status_of_an_error_is_that_of_an_operation_or_of_a_connection() -> None:
    named = {int(status) for _, _, operation in OPERATIONS for status in operation["responses"]}
    before = {int(status) for status in re.findall(r"\b[45]\d\d\b", CONNECTIONS)}
    never = {409}  # each request to the engine has an id of its own
    assert {reply.status for reply in _TABLE.values()} - named - before == never


def test_what_needs_no_key_says_so() -> None:
    open_ones = {path for path, _, operation in OPERATIONS if operation.get("security") == []}
    assert open_ones == OPEN and not any(
        "401" in operation["responses"] for path, _, operation in OPERATIONS if path in OPEN
    )


def test_errors_are_of_the_schema() -> None:
    schema = DOCUMENT["components"]["schemas"]["Error"]
    for error in (InvalidRequest("n is bad", param="n"), NotFound("there is no such route"), KeyError("x")):
        body = json.loads(error_body(error, "r"))
        jsonschema.validate(body, schema, Draft202012Validator)
    for bad in ({}, {"error": "x"}, {"error": {"message": "x"}}):
        assert not Draft202012Validator(schema).is_valid(bad)


# -- what bodies may be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "table"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
def test_every_field_is_documented(path: str, table: Mapping[str, Any]) -> None:
    schema = body_schema(path)
    assert list(schema["properties"]) == [*table]
    assert schema["required"] == [name for name, field in table.items() if field.required]
    assert schema.get("additionalProperties", True) is True, "unknown fields are named, not refused"
    assert all(operation["description"] for operation in schema["properties"].values())


def agree(path: str, body: dict[str, Any], *, good: bool) -> None:
    """The documented schema and the parser say the same of a body."""
    documented = Draft202012Validator(body_schema(path)).is_valid(body)
    try:
        read_chat(body, HERMES) if path == "/v1/chat/completions" else read_completion(body)
        parsed = True
    except InvalidRequest:
        parsed = False
    assert (documented, parsed) == (good, good), body


TOOL = {"type": "function", "function": {"name": "f"}}
# Field -> values that are fine, and values that are not.
BOTH: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 0.5, 2, 1e-12, None], [-0.1, 2.1, "1", True, [1]]),
    "top_p": ([0.1, 1, None], [0, -1, 1.1, "1"]),
    "top_k": ([-1, 0, 5, 2**31 - 1], [-2, 1.5, "5", 2**31]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "typical_p": ([0.5, 1], [0, 1.1]),
    "epsilon_cutoff": ([0, 1], [-0.1, 1.1]),
    "eta_cutoff": ([0, 1], [-0.1, 1.1]),
    "repetition_penalty": ([0.1, 10], [0, 10.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "no_repeat_ngram_size": ([0, 3], [-1, 1.5]),
    "n": ([1, 128, None], [0, -1, 129, "2", True]),
    "seed": ([-(2**63), 0, 2**63 - 1], [2**63, -(2**63) - 1, "1"]),
    "max_tokens": ([1, 2**31 - 1, None], [-1, 2**31, "5", 1.5]),
    "min_tokens": ([0, 5], [-1, "5"]),
    "logit_bias": ([{}, {"5": 1.5}, {"0": -100}, {str(token): 1 for token in range(1024)}],
                   [{"a": 1}, {"-1": 1}, {"1": 101}, {"1": "1"}, [], 5, {"1" * 11: 1},
                    {str(token): 1 for token in range(1025)}]),
    "stop": (["a", ["a"], [], ["a", "b", "c", "d"], None], ["", [""], ["a"] * 5, 5, [5], "x" * 1025]),
    "stop_token_ids": ([[], [0, 5], 5], [[-1], ["a"], [2**31], "a", [0] * 257, -1, True]),
    "allowed_token_ids": ([[], [0, 5], 0], [[-1], ["a"], {}, 2**31]),
    "bad_words": ([[], ["a"], "a"], [[""], [5], 5, ""]),
    "ignore_eos": ([True, False, None], [1, "yes"]),
    "skip_special_tokens": ([True, False], [0, "yes"]),
    "include_stop_str_in_output": ([True], ["yes"]),
    "logits_processors": ([[], ["p"], "p", [["p", {}]], [["p", None], "q"], {"p": {"a": 1}}, {"p": None}, {}],
                          [[5], 5, ["p"] * 17, [""], "", [["p", 1]], [["p", "x"]], [["p"]], [["p", {}, {}]], {"p": 1},
                           {"": None}]),
    "stream": ([True, False, None], ["yes", 1]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}, None,
                         {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}],
                        [{}, {"type": "banana"}, "text", [], {"type": "json_schema"},
                         {"type": "json_schema", "json_schema": {}},
                         {"type": "json_schema", "json_schema": {"schema": 5}}]),
    "regex": (["a+", None], [5, ["a"], "", "a" * 262_145]),
    "grammar": (['start: "a"'], [5, ""]),
    "choice": ([["a", "b"], "a", None], [5, [5], [], "", [""], ["a"] * 32_769]),
    "priority": ([0, 2**31 - 1], [-1, 2**31, 1.5]),
    "timeout": ([0.5, 86_400], [0, -1, 86_401, "5"]),
    "return_token_ids": ([True], ["yes"]),
    "resume": ([[], [[1, 2], []], None], [[5], [["a"]], [[-1]], [[2**31]], "x", 5]),
    "cache_salt": (["s", "s" * 128, None], ["", "s" * 129, 5]),
    "user": (["u", "u" * 1000, ""], [5, []]),
    "chat_template": ([None], ["x", {}]),
    "chat_template_kwargs": ([None], [{}, {"x": 1}]),
    "prompt_logprobs": ([None], [0, 5]),
    "model": (["m", "m" * 1000], [5, None, [], "", "m" * 1001]),
    "made_up": ([1, None, {}], []),
}  # fmt: skip
CHAT_ONLY: dict[str, tuple[list[Any], list[Any]]] = {
    "messages": ([[{"role": "user", "content": "x"}] * 2], [[], None, "x", {}]),
    "max_tokens": ([1], [0]),
    "max_completion_tokens": ([1, None], [0, -1, "5"]),
    "logprobs": ([True, False], [1, "yes"]),
    "tools": ([[], [TOOL], None], [{}, "f", [5], [{}], [TOOL] * 129, [{**TOOL, "type": "x"}], [{"type": "function"}]]),
    "tool_choice": (["auto", "none", None], [5, True, ["auto"], "banana", {}, {"type": "function"}]),
    "parallel_tool_calls": ([True, False], [1, "yes"]),
    "modalities": ([["text"], [], None, "text"], [["audio"], 5, "audio", ["text"] * 9]),
    "functions": ([None], [[{"name": "f"}]]),
    "function_call": ([None], ["auto"]),
    "store": ([True, "x", {}], []),
}
COMPLETION_ONLY: dict[str, tuple[list[Any], list[Any]]] = {
    "prompt": (["x", "", ["x", "y"], [1, 2], [[1], [2, 3]]],
               [None, [], [[]], 5, {}, [-1], ["a", 1], [1, "a"], [1.5], ["a"] * 129, [True], [""],
                ["a", ""], [2**31], [[2**31]]]),
    "best_of": ([1, 128], [0, 129, "2"]),
    "echo": ([True, False], [1, "yes"]),
    "logprobs": ([0, 5], [6, -1, True, "5"]),
    "suffix": ([None], ["x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BOTH)
def test_what_is_documented_is_what_both_routes_take(name: str) -> None:
    fine, wrong = BOTH[name]
    for path, base in (("/v1/chat/completions", CHAT_BODY), ("/v1/completions", COMPLETION_BODY)):
        for value in fine:
            agree(path, {**base, name: value}, good=True)
        for value in wrong:
            agree(path, {**base, name: value}, good=False)


@pytest.mark.parametrize(
    ("path", "base", "table"),
    [("/v1/chat/completions", CHAT_BODY, CHAT_ONLY), ("/v1/completions", COMPLETION_BODY, COMPLETION_ONLY)],
)
def test_what_is_documented_is_what_one_route_takes(
    path: str, base: dict[str, Any], table: dict[str, tuple[list[Any], list[Any]]]
) -> None:
    for name, (fine, wrong) in table.items():
        for value in fine:
            agree(path, {**base, name: value}, good=True)
        for value in wrong:
            agree(path, {**base, name: value}, good=False)
    for name in base:
        agree(path, {key: value for key, value in base.items() if key != name}, good=False)
    agree(path, base, good=True)


def test_the_examples_above_are_of_every_field() -> None:
    """But those that stand only with others: stream_options without stream, and top_logprobs without logprobs."""
    ignored = {name for name, field in CHAT.items() if field.effect is Effect.IGNORED}
    assert {*CHAT} - ignored - {*BOTH} - {*CHAT_ONLY} == {"stream_options", "top_logprobs"}
    assert {*COMPLETION} - {*BOTH} - {*COMPLETION_ONLY} == {"stream_options"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_fields_that_need_another_one(path: str) -> None:
    base = CHAT_BODY if path == "/v1/chat/completions" else COMPLETION_BODY
    for stream in (True, False):
        for options in ({"include_usage": True}, {"include_usage": False}, {"include_usage": None}, {}, None, {"x": 5}):
            agree(path, {**base, "stream": stream, "stream_options": options}, good=True)
        for options in ({"include_usage": 1}, {"include_usage": "yes"}, [], 5):
            agree(path, {**base, "stream": stream, "stream_options": options}, good=False)
    if path == "/v1/chat/completions":
        for top, good in ((0, True), (20, True), (21, False), (-1, False), ("5", False)):
            agree(path, {**base, "logprobs": True, "top_logprobs": top}, good=good)


@pytest.mark.parametrize(("path", "table"), [("/tokenize", TOKENIZE), ("/detokenize", DETOKENIZE)])
def test_every_field_of_a_conversion_is_documented(path: str, table: Mapping[str, Any]) -> None:
    assert list(body_schema(path)["properties"]) == [*table]


USER = {"role": "user", "content": "x"}
CONVERSIONS: list[tuple[str, dict[str, Any], bool]] = [
    ("/tokenize", {"prompt": "x"}, True),
    ("/tokenize", {"prompt": "x", "messages": None, "model": None, "tools": None, "add_special_tokens": None}, True),
    ("/tokenize", {"messages": [USER], "tools": [TOOL], "add_generation_prompt": False}, True),
    ("/tokenize", {"messages": [USER], "prompt": "x"}, False),
    ("/tokenize", {"messages": []}, False),
    ("/tokenize", {"messages": [USER] * 8193}, False),
    ("/tokenize", {"messages": [USER], "tools": [TOOL] * 129}, False),
    ("/tokenize", {"messages": [USER], "add_special_tokens": 1}, False),
    ("/tokenize", {"prompt": "x", "add_generation_prompt": "yes"}, False),
    ("/tokenize", {"prompt": "x", "tools": [5]}, False),
    ("/tokenize", {"prompt": "x", "return_token_strs": 1}, False),
    ("/tokenize", {"prompt": 5}, False),
    ("/tokenize", {"prompt": "x", "model": ""}, False),
    ("/tokenize", {}, False),
    ("/detokenize", {"tokens": []}, True),
    ("/detokenize", {"tokens": [1, 2], "model": None}, True),
    ("/detokenize", {"tokens": [True]}, False),
    ("/detokenize", {"tokens": None}, False),
    ("/detokenize", {"tokens": "x"}, False),
]


@pytest.mark.parametrize(("path", "body", "good"), CONVERSIONS)
def test_what_is_documented_is_what_the_conversions_take(path: str, body: dict[str, Any], good: bool) -> None:
    async def scenario() -> int:
        async with open_server(fake_service()) as server:
            return (await server.http.post(path, json=body)).status_code

    assert Draft202012Validator(body_schema(path)).is_valid(body) is good
    assert run(scenario()) == (200 if good else 400)


# -- what is answered --------------------------------------------------------------------------------------------------

ASKED: list[tuple[str, str, dict[str, Any] | None]] = [
    ("/v1/chat/completions", "post", HELLO),
    ("/v1/chat/completions", "post", {**HELLO, "n": 2, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}),
    ("/v1/completions", "post", {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 3, "unknown": 1}),
    ("/v1/completions", "post", {"model": MODEL, "prompt": "ab", "max_tokens": 2, "echo": True, "logprobs": 2,
                                 "return_token_ids": True}),
    ("/v1/models", "get", None), ("/v1/models/{id}", "get", None),
    ("/tokenize", "post", {"prompt": "a", "return_token_strs": True, "unknown": 1}),
    ("/detokenize", "post", {"tokens": [65]}),
    ("/livez", "get", None), ("/readyz", "get", None), ("/health", "get", None), ("/load", "get", None),
    ("/openapi.json", "get", None), ("/admin/state", "get", None), ("/admin/requests/{id}", "get", None),
    ("/admin/drain", "post", None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "method", "body"), ASKED)
def test_answers_are_what_is_documented(path: str, method: str, body: dict[str, Any] | None) -> None:
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}

    async def scenario() -> Any:
        ring = read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})
        async with open_server(fake_service(), keys=ring) as server:
            await server.http.post("/v1/chat/completions", json=HELLO, headers={"x-request-id": "one"})
            place = path.replace("models/{id}", f"models/{MODEL}").replace("requests/{id}", "requests/one")
            return await server.http.request(method, place, json=body, headers=admin)

    reply = run(scenario())
    operation = DOCUMENT["paths"][path][method]["responses"][str(reply.status_code)]
    assert reply.status_code < 300, reply.text
    schema = operation["content"]["application/json"]["schema"]
    jsonschema.validate(reply.json(), schema, Draft202012Validator)
    for wrong in ({}, {"object": "x"}, []):
        assert path == "/openapi.json" or not Draft202012Validator(schema).is_valid(wrong), "it says nothing"
    there = {name for name in reply.headers if name.startswith("x-")}
    assert there <= set(operation["headers"]) and "x-request-id" in there
    assert ("x-ignored-parameters" in there) is (body is not None and "unknown" in body)


# -- the page ----------------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """Collects what a page would load or run, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_names_every_route_and_field_and_loads_nothing() -> None:
    read = Links()
    read.feed(page(DOCUMENT))
    for path, method, operation in OPERATIONS:
        assert f"{method.upper()} {path}" in read.text and operation["summary"] in read.text
    for field in (*CHAT, *COMPLETION):
        assert field in read.text
    assert read.loads == ["/openapi.json"]
    assert not read.tags & {"script", "link", "img", "iframe", "object", "form"}


def test_what_the_page_shows_is_text() -> None:
    operation = {
        "info": {"version": "<b>1</b>"},
        "paths": {"/<i>": {"get": {"summary": "<script>x</script>", "requestBody": {"content": {"application/json": {
            "schema": {"properties": {"<img>": {"description": "<a href=x>"}}}}}}}}},
    }  # fmt: skip
    read = Links()
    read.feed(page(operation))
    assert read.loads == ["/openapi.json"] and not read.tags & {"b", "i", "script", "img"}
