"""read_structured_output: parses the constraint of a request's output from the field that has it.

response_format           OpenAI; with `schema`, `regex` or `grammar` also as llama.cpp and others write it
structured_outputs        vLLM
guided_json, guided_regex, guided_choice, guided_grammar    vLLM before 0.12
json_schema, ebnf         SGLang, llama.cpp
regex, grammar, choice    Chairlift
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.core.validation import invalid_param
from chairlift.core.vllm_structured_outputs_params import UNSUPPORTED_OPTIONS, VLLM_KINDS
from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.errors import short_reason
from chairlift.engine.structured.json_schema.lowering import lower
from chairlift.protocol.field_check import format_short

RESPONSE_FORMAT = "response_format"
STRUCTURED_OUTPUTS = "structured_outputs"
KIND_BY_FIELD: Mapping[str, str] = {
    "regex": "regex", "grammar": "grammar", "choice": "choice", "ebnf": "grammar", "json_schema": "json_schema",
    "guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
}  # fmt: skip
"""Name of each field whose value is a constraint -> kind of StructuredOutput."""

CONSTRAINING_FIELDS = (*KIND_BY_FIELD, STRUCTURED_OUTPUTS, RESPONSE_FORMAT)
_FORMATS = ("text", "json_object", "json_schema", "regex", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredField:
    """The constraint of a request's output.

    Attributes:
        output: the constraint; None without one.
        name: the body's field that has it, "" without one.
        ignored: places of keywords of a JSON Schema that it does not enforce, and of options without effect.
    """

    output: StructuredOutput | None = None
    name: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Constraint:
    """A constraint as the client sent it: its place in the body, its kind of StructuredOutput and its value."""

    at: str
    kind: str
    value: Any
    is_strict: bool = False

    @property
    def field(self) -> str:
        """Name of the body's field."""
        return self.at.partition(".")[0]


def read_structured_output(fields: Mapping[str, Any], budget: LoweringBudget) -> StructuredField:
    """Parse the constraint of the output; lowering its schema uses the request's budget.

    Raises InvalidRequest, also if two fields have one.
    """
    constraints, ignored = [_Constraint(name, KIND_BY_FIELD[name], fields[name]) for name in KIND_BY_FIELD
                            if name in fields], list[str]()  # fmt: skip
    if STRUCTURED_OUTPUTS in fields:
        constraints.append(_of_structured_outputs(fields[STRUCTURED_OUTPUTS], ignored))
    if (response_format := _of_response_format(fields.get(RESPONSE_FORMAT))) is not None:
        constraints.append(response_format)
    if len(constraints) > 1:
        names = [each.field for each in constraints]
        raise invalid_param(names[-1], f"cannot be combined with {' and '.join(names[:-1])}")
    if not constraints:
        return StructuredField()
    output, places = _structured_output(constraints[0], budget)
    return StructuredField(output=output, name=constraints[0].field, ignored=(*ignored, *places))


def _structured_output(constraint: _Constraint, budget: LoweringBudget) -> tuple[StructuredOutput, tuple[str, ...]]:
    """Return a constraint in the engine's form, and the places of the keywords that it does not enforce."""
    at, kind, value = constraint.at, constraint.kind, constraint.value
    if value in ([], ()):
        raise InvalidRequest(f"{at} must not be empty", param=constraint.field)
    if kind == "json_schema" and isinstance(value, bool):
        raise InvalidRequest(f"{at} must be an object or JSON text, got {value}", param=constraint.field)
    try:
        output = StructuredOutput(**{kind: value})
        if kind != "json_schema":
            return output, ()
        schema, places = lower(output.schema, strict=constraint.is_strict, budget=budget)
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace(f"structured.{kind}", at, 1), param=constraint.field) from None
    except ValueError as error:
        raise InvalidRequest(f"{at} cannot be enforced: {short_reason(error)}", param=constraint.field) from None
    return StructuredOutput(json_schema=schema) if places else output, tuple(at + place for place in places)


def _of_structured_outputs(options: Any, ignored: list[str]) -> _Constraint:
    """Return the constraint in vLLM's `structured_outputs`; append the options without effect to `ignored`."""
    if not isinstance(options, dict):
        raise invalid_param(STRUCTURED_OUTPUTS, f"must be an object, got {type(options).__name__}")
    options = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in options:
        if name in UNSUPPORTED_OPTIONS:
            raise InvalidRequest(f"{STRUCTURED_OUTPUTS}.{name} is not supported", param=STRUCTURED_OUTPUTS)
        if name not in VLLM_KINDS:
            ignored.append(f"{STRUCTURED_OUTPUTS}.{name}")
    kinds = [name for name in VLLM_KINDS if name in options]
    if len(kinds) != 1:
        raise invalid_param(
            STRUCTURED_OUTPUTS, f"needs exactly one of {', '.join(VLLM_KINDS)}, got {' and '.join(kinds) or 'none'}"
        )
    return _Constraint(f"{STRUCTURED_OUTPUTS}.{kinds[0]}", VLLM_KINDS[kinds[0]], options[kinds[0]])


def _of_response_format(response_format: Any) -> _Constraint | None:
    if response_format is None:
        return None
    if not isinstance(response_format, dict):
        raise invalid_param(RESPONSE_FORMAT, f"must be an object, got {type(response_format).__name__}")
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind in ("regex", "grammar"):
        if not isinstance(response_format.get(kind), str):
            raise invalid_param(RESPONSE_FORMAT, f"of type {kind} needs a string in {RESPONSE_FORMAT}.{kind}")
        return _Constraint(f"{RESPONSE_FORMAT}.{kind}", kind, response_format[kind])
    if kind not in ("json_object", "json_schema"):
        raise invalid_param(f"{RESPONSE_FORMAT}.type", f"must be {', '.join(_FORMATS)}, got {format_short(kind)}")
    if response_format.get("schema") is not None and response_format.get("json_schema") is None:
        return _of_schema(response_format, f"{RESPONSE_FORMAT}.schema")
    if kind == "json_object":
        return _Constraint(RESPONSE_FORMAT, "json_object", True)
    holder = response_format.get("json_schema")
    if not isinstance(holder, dict) or not isinstance(holder.get("schema"), dict):
        raise invalid_param(f"{RESPONSE_FORMAT}.json_schema", "must be an object with a schema that is an object")
    return _of_schema(holder, f"{RESPONSE_FORMAT}.json_schema.schema")


def _of_schema(holder: Mapping[str, Any], at: str) -> _Constraint:
    """Return the constraint of an object with `schema` and perhaps `strict`."""
    if not isinstance(holder["schema"], dict):
        raise InvalidRequest(
            f"{at} must be an object, got {type(holder['schema']).__name__}", param=RESPONSE_FORMAT
        )  # fmt: skip
    return _Constraint(at, "json_schema", holder["schema"], is_strict=holder.get("strict") is True)
