"""GenerationDefaults: a request's default parameters from generation_config.json. Imports no torch.

A field that transformers applies and Chairlift does not is logged as a warning: it makes other tokens. So is a value
that no request may have, and a file that cannot be read: both are left out, since a model runs without them.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from chairlift.core.errors import InvalidRequest, ModelError
from chairlift.core.sampling_params import NEUTRAL_VALUES, SamplingParams
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.model_folder import read_json

SAMPLING = tuple(NEUTRAL_VALUES)
"""Fields that generation_config.json and SamplingParams share."""

GREEDY_FIELDS = ("repetition_penalty", "no_repeat_ngram_size")
"""Fields that also apply to greedy requests."""


IGNORED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("bad_words_ids", "begin_suppress_tokens", "exponential_decay_length_penalty", "forced_bos_token_id",
         "forced_eos_token_id", "sequence_bias", "stop_strings", "suppress_tokens"), (None, [], {}),
    ),
    **dict.fromkeys(("guidance_scale", "num_beams"), (None, 1)),
    **dict.fromkeys(("min_length", "min_new_tokens", "penalty_alpha"), (None, 0)),
}  # fmt: skip
"""Field that changes the tokens of transformers' generate() and that Chairlift does not apply -> its neutral values."""

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The defaults of a model.

    Attributes:
        eos_token_ids: each of them ends a sequence.
        sampling: some of SAMPLING -> value; an absent field is neutral.
        max_tokens: None where the file does not limit the output.
    """

    eos_token_ids: tuple[int, ...] = ()
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    max_tokens: int | None = None


def read_generation_defaults(folder: Path, config: ModelConfig) -> GenerationDefaults:
    """Read generation_config.json of a model folder; without one, only the config's eos ids are set.

    Logs a warning for what has no effect: a file that is no JSON object, fields that are not applied, invalid values.
    """
    path = folder / "generation_config.json"
    if not path.exists():
        return GenerationDefaults(config.eos_token_ids)
    try:
        content = read_json(path)
    except ModelError as error:
        log.warning("%s; the model has no defaults for requests", error.message)
        return GenerationDefaults(config.eos_token_ids)
    if ignored := [name for name, neutral in IGNORED_FIELDS.items() if content.get(name) not in neutral]:
        log.warning("%s: transformers' generate() applies %s, Chairlift does not", path, ", ".join(ignored))
    defaults, problems = parse_generation_defaults(content, config.eos_token_ids)
    for problem in problems:
        log.warning("%s: %s; it is left out", path, problem)
    return defaults


def parse_generation_defaults(
    content: Mapping[str, Any], eos_token_ids: tuple[int, ...]
) -> tuple[GenerationDefaults, list[str]]:
    """Convert the object in generation_config.json into defaults, and a sentence for each value that is invalid.

    As in transformers its eos ids replace `eos_token_ids`, those of config.json, which apply where it has none. A
    do_sample of false means temperature 0 whatever the sampling fields contain, and GREEDY_FIELDS still apply. An
    invalid value counts as absent.
    """
    fields, problems = ConfigReader(content, {}), _Problems()
    sampling: dict[str, float | int] = {}
    for name in SAMPLING:
        value = content.get(name)
        if value is not None and (checked := problems.of(partial(_checked, name, value))) is not None:
            sampling[name] = checked
    if problems.of(lambda: fields.flag_or("do_sample", True)) is False:
        sampling = {name: value for name, value in sampling.items() if name in GREEDY_FIELDS}
        sampling["temperature"] = 0.0
    ours = problems.of(lambda: fields.token_ids("eos_token_id"))
    max_tokens = problems.of(lambda: fields.size("max_new_tokens")) if "max_new_tokens" in fields else None
    return GenerationDefaults(ours or eos_token_ids, sampling, max_tokens), problems.sentences


class _Problems:
    """Collects the sentences of errors of single values."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def of(self, read: Callable[[], T]) -> T | None:
        """Return the value, or None where it is invalid."""
        try:
            return read()
        except ModelError as error:
            self.sentences.append(error.message.removeprefix("config.json: "))
            return None


def _checked(name: str, value: Any) -> float | int:
    """Return the value if it is valid in a request; the same rules apply to a model's default."""
    if name == "top_k" and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        SamplingParams(**{name: value})
    except InvalidRequest as error:
        raise ModelError(error.message, field=name) from error
    checked: float | int = value
    return checked
