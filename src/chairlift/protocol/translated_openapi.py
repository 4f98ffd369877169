"""translated_operations: what the OpenAPI document says of the routes of other APIs, in a server and in a router."""

from collections.abc import Iterable, Sequence

from chairlift.protocol import response_schemas as schemas
from chairlift.protocol.anthropic.message_schema import MESSAGE, TOKEN_COUNT
from chairlift.protocol.anthropic.messages_request_fields import COUNT_PATH, COUNT_TOKENS, MESSAGES
from chairlift.protocol.anthropic.messages_request_fields import PATH as MESSAGES_PATH
from chairlift.protocol.ollama.openapi import ollama_operations
from chairlift.protocol.openapi import EVENTS, Schema, body_schema, make_operation, path_parameter
from chairlift.protocol.request_fields import TOKENIZE
from chairlift.protocol.responses.compaction_request_fields import COMPACTIONS
from chairlift.protocol.responses.compaction_request_fields import PATH as COMPACT_PATH
from chairlift.protocol.responses.input_tokens import PATH as INPUT_TOKENS_PATH
from chairlift.protocol.responses.response_schema import COMPACTED, DELETED, INPUT_ITEMS, INPUT_TOKENS, RESPONSE
from chairlift.protocol.responses.responses_request_fields import PATH, RESPONSES, SAME_FIELDS

STORED = "400 404"
"""Error statuses of an operation on a stored response."""

RESUMED = "409"
"""Error status of a generation that goes on with tokens of another model."""

_COUNTED = {name: field for name, field in RESPONSES.items() if name not in SAME_FIELDS or name in TOKENIZE}
"""Fields of a request for a response that are read when its tokens are counted."""

_PAGE: list[Schema] = [
    {"name": "limit", "in": "query", "required": False, "description": "Items to return, 20 by default",
     "schema": {"type": "integer", "minimum": 1, "maximum": 100}},
    {"name": "order", "in": "query", "required": False, "description": "desc: the newest first (default); asc",
     "schema": {"enum": ["asc", "desc"]}},
    {"name": "after", "in": "query", "required": False, "description": "Id of the item before the first one",
     "schema": {"type": "string"}},
]  # fmt: skip
_STREAM: Schema = {"name": "stream", "in": "query", "required": False, "schema": {"enum": ["false"]}}


def translated_operations(
    names: Sequence[str], *, parameters: list[Schema], error_statuses: str, count_statuses: str
) -> Iterable[tuple[str, str, Schema]]:  # fmt: skip
    """Yield path, method and description of each.

    `error_statuses` are those of a route that needs the model, `count_statuses` those of one that counts tokens.
    """
    yield from _stored_and_new_responses(names, parameters, error_statuses)
    yield MESSAGES_PATH, "post", make_operation(
        "Generate a message of Anthropic's Messages API", MESSAGE, body=body_schema(MESSAGES, names), also=EVENTS,
        parameters=parameters, error_statuses=error_statuses, error="AnthropicError",
    )  # fmt: skip
    yield COUNT_PATH, "post", make_operation(
        "Count the tokens of a request to /v1/messages", TOKEN_COUNT, body=body_schema(COUNT_TOKENS, names),
        error_statuses=count_statuses, error="AnthropicError",
    )  # fmt: skip


def _stored_and_new_responses(
    names: Sequence[str], parameters: list[Schema], error_statuses: str
) -> Iterable[tuple[str, str, Schema]]:
    """Yield the operations of OpenAI's Responses API."""
    response_id = path_parameter("id")
    yield PATH, "post", make_operation(
        "Generate a response of OpenAI's Responses API", RESPONSE, body=body_schema(RESPONSES, names), also=EVENTS,
        parameters=parameters, error_statuses=error_statuses, links={
            "stored": {"operationId": "stored", "parameters": {"id": "$response.body#/id"}},
            "deleted": {"operationId": "deleted", "parameters": {"id": "$response.body#/id"}},
            "items": {"operationId": "items", "parameters": {"id": "$response.body#/id"}},
        },
    )  # fmt: skip
    yield COMPACT_PATH, "post", make_operation(
        "Replace the answers, calls and results of a conversation by a summary", COMPACTED,
        body=body_schema(COMPACTIONS, names), parameters=parameters, error_statuses=error_statuses,
    )  # fmt: skip
    yield INPUT_TOKENS_PATH, "post", make_operation(
        "Count the input tokens of a request for a response", INPUT_TOKENS, body=body_schema(_COUNTED, names),
        error_statuses=error_statuses.replace(RESUMED, "").strip(),
    )  # fmt: skip
    one = f"{PATH}/{{id}}"
    yield one, "get", make_operation(
        "Return a stored response", RESPONSE, parameters=[response_id, _STREAM], name="stored",
        error_statuses=f"{STORED} 503",
    )  # fmt: skip
    yield one, "delete", make_operation(
        "Delete a stored response", DELETED, parameters=[response_id], name="deleted", error_statuses="404 503"
    )  # fmt: skip
    yield f"{one}/input_items", "get", make_operation(
        "List the items of a stored response's input", INPUT_ITEMS, parameters=[response_id, *_PAGE], name="items",
        error_statuses=f"{STORED} 503",
    )  # fmt: skip
    yield f"{one}/cancel", "post", make_operation(
        "Reject: only responses in the background can be cancelled, and there are none", schemas.READY,
        parameters=[response_id], error_statuses=f"{STORED} 503",
    )  # fmt: skip
    yield from ollama_operations(names, parameters=parameters, error_statuses=error_statuses)
