"""read_render_options: parses the fields of a request that decide how the chat template renders it."""

from collections.abc import Mapping
from typing import Any

from chairlift.core.chat_template_names_and_limits import REASONING_EFFORTS
from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.request_schemas import MAX_DOCUMENTS
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.template_variables import check_variables, effort_variables


def read_render_options(
    fields: Mapping[str, Any], template: ChatTemplate | None
) -> tuple[RenderOptions, tuple[str, ...]]:  # fmt: skip
    """Return the options of a rendering, and the names of the fields and variables that the template does not read.

    Raises InvalidRequest naming the field.
    """
    readable = frozenset[str]() if template is None else template.variables
    variables: dict[str, Any] = {}
    ignored: list[str] = []
    if (effort := fields.get("reasoning_effort")) is not None:
        if effort not in REASONING_EFFORTS:
            expected = ", ".join(REASONING_EFFORTS)
            got = repr(effort[:40]) if isinstance(effort, str) else type(effort).__name__
            raise invalid_param("reasoning_effort", f"must be one of {expected}, got {got}")
        variables = effort_variables(effort, readable, "" if template is None else template.text)
        if not variables:
            ignored.append("reasoning_effort")
    named_tokens = () if template is None else template.named_tokens
    for name, value in check_variables(fields.get("chat_template_kwargs", {}), named_tokens).items():
        if name in readable:
            variables[name] = value
        else:
            ignored.append(f"chat_template_kwargs.{name}")
    documents = fields.get("documents")
    if documents is not None:
        documents = _documents(documents)
        if template is None or not template.reads_documents:
            ignored.append("documents")
    continues = boolean("continue_final_message", fields.get("continue_final_message", False))
    prompts = fields.get("add_generation_prompt")
    if prompts is not None:
        boolean("add_generation_prompt", prompts)
    if continues and prompts:
        raise invalid_param("continue_final_message", "cannot be combined with add_generation_prompt: true")
    options = RenderOptions(
        variables=variables, documents=documents, add_generation_prompt=prompts, continue_final_message=continues
    )
    return options, tuple(ignored)


def _documents(value: Any) -> list[dict[str, Any]]:
    """Return a list of documents, which are objects of any fields."""
    if not isinstance(value, list) or len(value) > MAX_DOCUMENTS:
        raise invalid_param("documents", f"must be a list of at most {MAX_DOCUMENTS} documents")
    for index, document in enumerate(value):
        if not isinstance(document, dict):
            raise invalid_param(f"documents[{index}]", f"must be an object, got {type(document).__name__}")
    return value
