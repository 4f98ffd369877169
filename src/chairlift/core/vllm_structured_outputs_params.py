"""StructuredOutputsParams: vLLM's class of this name, converted to a StructuredOutput."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.core.validation import invalid_param

VLLM_KINDS: Mapping[str, str] = {
    "json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar", "json_object": "json_object",
}  # fmt: skip
"""Field of StructuredOutputsParams that constrains the output -> field of StructuredOutput."""

UNSUPPORTED_OPTIONS = (
    "disable_any_whitespace", "whitespace_pattern", "structural_tag",
)  # fmt: skip
"""Fields of StructuredOutputsParams that change the output and are not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """vLLM's name and fields for the grammar of one request's output; SamplingParams converts it.

    Attributes:
        json: a JSON Schema: an object, or JSON text.
        regex: a regular expression that the whole output matches.
        choice: strings; the output is one of them.
        grammar: a context-free grammar, in Lark's notation or in EBNF.
        json_object: any JSON object.
        disable_any_whitespace: only False is supported.
        disable_additional_properties: has no effect, since objects have only listed properties by default; set
            additionalProperties in the schema to allow others.
        whitespace_pattern: only None is supported.
        structural_tag: only None is supported.

    Raises:
        InvalidRequest: none or several of the first five are set, or one of the others.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        self.to_structured_output()

    def to_structured_output(self) -> StructuredOutput:
        """Return the same grammar as a StructuredOutput. Raises InvalidRequest."""
        for name in UNSUPPORTED_OPTIONS:
            if getattr(self, name) not in (None, False):
                raise invalid_param(f"structured_outputs.{name}", "is not supported")
        kinds = [name for name in VLLM_KINDS if getattr(self, name) not in (None, False)]
        if len(kinds) != 1:
            names = " and ".join(kinds) or "none"
            raise invalid_param("structured_outputs", f"needs exactly one of {', '.join(VLLM_KINDS)}, got {names}")
        at, kind, value = f"structured_outputs.{kinds[0]}", VLLM_KINDS[kinds[0]], getattr(self, kinds[0])
        if kind == "choice" and not value:
            raise invalid_param(at, "must not be empty")
        try:
            return StructuredOutput(**{kind: value})
        except InvalidRequest as error:
            raise InvalidRequest(error.message.replace(f"structured.{kind}", at, 1), param=at) from None
