"""context_length_message: the error of a prompt that does not fit into the context, in the words of Anthropic's API.

Clients search for these words: Claude Code then lowers max_tokens, or compacts the conversation, and tries again.
"""

import re

_OURS = re.compile(
    r"has (?P<prompt>\d+) tokens(?: or more)?(?: and max_tokens is (?P<output>\d+))?, "
    r"the limit (?:is|of their sum is) (?P<limit>\d+)"
)
_CONTEXT = r"maximum context length is (?P<limit>\d+) tokens"
_OTHERS = (
    re.compile(
        _CONTEXT + r".{0,80}?\((?P<prompt>\d+) in the (?:messages|prompt), (?P<output>\d+) in the completion", re.S
    ),
    re.compile(
        r"is too large: (?P<output>\d+).{0,40}?" + _CONTEXT + r" and your request has (?P<prompt>\d+) input", re.S
    ),
    re.compile(_CONTEXT + r".{0,80}?resulted in (?P<prompt>\d+) tokens", re.S),
)
"""Messages of replicas that are other servers: vLLM, and OpenAI."""


def context_length_message(message: str) -> str | None:
    """Return the message of an error about the context in Anthropic's words; None for any other message."""
    for pattern in (_OURS, *_OTHERS):
        if (match := pattern.search(message)) is not None:
            groups = match.groupdict()
            return _in_tokens(int(groups["prompt"]), int(groups.get("output") or 0), int(groups["limit"]))
    return None


def _in_tokens(prompt: int, output: int, limit: int) -> str:
    """Return the message; an output needs at least one token, so a prompt has at most limit - 1."""
    if prompt >= limit or not output:
        return f"prompt is too long: {prompt} tokens > {limit - 1} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {limit}, decrease input length or "
        "`max_tokens` and try again"
    )
