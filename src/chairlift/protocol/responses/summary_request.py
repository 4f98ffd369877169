"""summary_body, text_of, cut_off_error: asks the model for a summary of a conversation, and reads it."""

from chairlift.core.errors import InvalidRequest
from chairlift.core.validation import invalid_param
from chairlift.protocol.responses.compaction_request_fields import SUMMARY_FIELDS
from chairlift.protocol.responses.request import ResponseRequest
from chairlift.protocol.responses.responses_request_fields import MESSAGE
from chairlift.protocol.translation.base import Json

SUMMARY_REQUEST = (
    "Your answer to this message will replace the conversation above, apart from the messages of the user. Write a "
    "summary with all that is needed to go on: what the user wants, what was decided and why, the facts, names of "
    "files, commands and results that matter, what is done, and what is left to do. Write the summary only. Call no "
    "tools."
)
"""What the model is asked behind the conversation."""

_CHAT_FIELDS = {*SUMMARY_FIELDS, "max_completion_tokens", "reasoning_effort", "stream", "stream_options"} - {"tools"}
"""Fields of chat completions that apply to a summary; the model is shown no tools, so that it answers with text."""


def summary_body(request: ResponseRequest) -> Json:
    """Return the body of chat completions that asks for the summary of a request's conversation.

    Raises InvalidRequest for a conversation without any text or call.
    """
    messages = request.chat["messages"]
    if not any(map(_has_content, messages[request.echoed["instructions"] is not None :])):
        raise invalid_param("input", "has nothing to summarize; send the items, or previous_response_id")
    kept = {name: value for name, value in request.chat.items() if name in _CHAT_FIELDS}
    return {**kept, "messages": [*messages, {"role": "user", "content": SUMMARY_REQUEST}]}


def _has_content(message: Json) -> bool:
    return any(message.get(name) for name in ("content", "reasoning_content", "tool_calls"))


def text_of(output: list[Json]) -> str:
    """Return the text of the messages in an output, without space around it."""
    return "".join(part["text"] for item in output if item["type"] == MESSAGE for part in item["content"]).strip()


def cut_off_error(body: Json, num_tokens: int) -> InvalidRequest:
    """Return the error of a summary that was cut off after some tokens: the conversation would be lost with it."""
    if "max_completion_tokens" in body:
        return invalid_param("max_output_tokens", f"is too small: the summary was cut off after {num_tokens} tokens")
    return invalid_param(
        "input", f"leaves {num_tokens} tokens of the model's context to the summary, which was cut off; compact "
        "sooner, or send fewer items",
    )  # fmt: skip
