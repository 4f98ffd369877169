"""What schemathesis is told besides the document: why a body that the schema allows may be refused, reason by reason.

SCHEMATHESIS_HOOKS names this module; a refusal that no reason explains fails the run.
"""

import re
from typing import Any

import schemathesis

# Field (a pattern) -> what is said of it (a pattern), where a schema cannot say it.
EXPLAINED: tuple[tuple[str, str], ...] = (
    # what the model is
    (r"prompt|tokens|resume|stop_token_ids|allowed_token_ids|logit_bias", r"token ids? .*(vocabulary|from 0 to)"),
    (r"logit_bias", r"must be between 0 and"),
    (r"prompt", r"has 0 tokens|context length|the limit is|max_tokens"),
    (r"logits_processors", r"there is no logits processor"),
    (r"messages(\[\d+\])?.*", r"the chat template|private use"),
    # what another field says
    (r"tool_choice", r"needs tools to choose from|not among the tools|cannot force a call where"),
    (r"top_logprobs", r"needs logprobs to be true"),
    (r"response_format|regex|grammar|choice", r"cannot go with"),
    (r"min_tokens", r"more than max_tokens"),
    (r"max_tokens", r"got 0 without echo"),
    (r"best_of", r"less than n|cannot go with stream"),
    (r"n", r"times the prompts may be"),
    (r"resume", r"goes with one prompt|resume"),
    (r"prompt", r"or messages is needed"),
    (r"messages\[\d+\]\.tool_call_id", r"must be the id of a call"),
    (r"tools\[\d+\]\.function\.name", r"is there twice"),
    # what is written in another language
    (r"regex|grammar|response_format|tools.*", r"cannot be compiled|schema|grammar|regular expression|brackets|nested"),
    (r"messages\[\d+\]\.tool_calls\[\d+\]\.function\.arguments", r"must be a string with a JSON object"),
    # JSON Schema counts 1.0 as an integer, and so no server of OpenAI's API does
    (r".*", r"must be (an integer|a list), got float|must hold token ids|must be text, token ids, or a list"),
)

OUT_OF_TIME = {(408, "timeout"), (429, "deadline_unreachable")}
"""What a request gets whose own time is too short."""


@schemathesis.check
def is_accepted_or_explained(context: Any, response: Any, case: Any) -> None:
    """What the schema allows is answered, or refused for a reason above."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    status = response.status_code
    if 200 <= status < 300 or status == 401 or (status == 404 and case.operation.path.endswith("{id}")):
        return
    error = response.json()["error"]
    if (status, error["code"]) in OUT_OF_TIME or error["code"] == "nothing_left":
        return
    if status == 400 and any(
        re.fullmatch(param, error["param"] or "") and re.search(said, error["message"]) for param, said in EXPLAINED
    ):
        return
    raise AssertionError(f"no reason explains {status}: {error['param']}: {error['message']}")
