"""context_length_message: the sentences by which clients of Anthropic's API learn that a prompt does not fit."""

import re

from chairlift.core.errors import ContextLengthExceeded
from chairlift.protocol.anthropic.context_length_message import context_length_message
from support_shares import for_each

PROMPT_TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
SUM_TOO_LARGE = re.compile(
    r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+), decrease input length or "
    r"`max_tokens` and try again"
)


@for_each(("error", "pattern", "numbers"), [
    (ContextLengthExceeded(9000, 32000, 8192), PROMPT_TOO_LONG, ("9000", "8191")),
    (ContextLengthExceeded(8192, 1, 8192), PROMPT_TOO_LONG, ("8192", "8191")),
    (ContextLengthExceeded(9000, None, 8192), PROMPT_TOO_LONG, ("9000", "8191")),
    (ContextLengthExceeded(99999, None, 8192, or_more=True), PROMPT_TOO_LONG, ("99999", "8191")),
    (ContextLengthExceeded(15, 32000, 8192), SUM_TOO_LARGE, ("15", "32000", "8192")),
    (ContextLengthExceeded(8191, 2, 8192), SUM_TOO_LARGE, ("8191", "2", "8192")),
])  # fmt: skip
def test_own_errors(error: ContextLengthExceeded, pattern: re.Pattern[str], numbers: tuple[str, ...]) -> None:
    match = pattern.fullmatch(context_length_message(error.message) or "")
    assert match is not None and match.groups() == numbers


@for_each(("message", "pattern", "numbers"), [
    ("This model's maximum context length is 8192 tokens. However, you requested 8300 tokens (300 in the "
     "messages, 8000 in the completion). Please reduce the length of the messages or completion.", SUM_TOO_LARGE,
     ("300", "8000", "8192")),
    ("'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 8192 tokens "
     "and your request has 15 input tokens (32000 > 8192 - 15).", SUM_TOO_LARGE, ("15", "32000", "8192")),
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
     PROMPT_TOO_LONG, ("9000", "8191")),
])  # fmt: skip
def test_errors_of_other_servers(message: str, pattern: re.Pattern[str], numbers: tuple[str, ...]) -> None:
    match = pattern.fullmatch(context_length_message(message) or "")
    assert match is not None and match.groups() == numbers


@for_each("message", [
    "", "max_tokens must be at least 1, got 0", "tools has 200 entries, the limit is 128",
    "the text has many tokens", "the model 'a' is not served",
])  # fmt: skip
def test_other_messages_stay(message: str) -> None:
    assert context_length_message(message) is None
