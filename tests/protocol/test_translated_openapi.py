"""translated_operations: other APIs in the documents of server and router."""

import pytest

from chairlift.protocol import router_and_fleet_openapi
from chairlift.protocol.anthropic.messages_request_fields import COUNT_TOKENS, MESSAGES
from chairlift.protocol.responses.responses_request_fields import RESPONSES
from chairlift.server import openapi
from chairlift.web.translation.translated_route_table import TRANSLATED_PATHS


@pytest.mark.parametrize("document", [openapi.document, router_and_fleet_openapi.document])
def test_every_route_is_described(document: object) -> None:
    paths = document(["m"])["paths"]  # type: ignore[operator]
    for path in TRANSLATED_PATHS:
        operation = paths[path]["post"]
        assert {"200", "400", "404", "429", "503"} <= operation["responses"].keys(), path
        assert operation["summary"]
    body = paths["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"].keys() == RESPONSES.keys()
    for path, table in (("/v1/messages", MESSAGES), ("/v1/messages/count_tokens", COUNT_TOKENS)):
        operation = paths[path]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]["properties"].keys() == table.keys()
        error = operation["responses"]["400"]["content"]["application/json"]["schema"]
        assert error == {"$ref": "#/components/schemas/AnthropicError"}
    assert {"get", "delete"} <= paths["/v1/responses/{id}"].keys()
