"""gen_ai_attributes: what all spans of a generation have, by OpenTelemetry's conventions for generative AI."""

from chairlift.observability.tracing.span import MAX_VALUE_CHARS, AttributeValue

PROVIDER = "chairlift"
OPERATIONS = {
    "/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/embeddings": "embeddings",
    "/v1/score": "embeddings", "/v1/rerank": "embeddings",
}  # fmt: skip
"""The operation of each route that needs the model."""


def gen_ai_attributes(path: str, model: object) -> dict[str, AttributeValue]:
    """Return operation, provider and model of a request to one of OPERATIONS; nothing for another path."""
    if path not in OPERATIONS:
        return {}
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": OPERATIONS[path], "gen_ai.provider.name": PROVIDER,
    }  # fmt: skip
    if isinstance(model, str) and model:
        attributes["gen_ai.request.model"] = model[:MAX_VALUE_CHARS]
    return attributes
