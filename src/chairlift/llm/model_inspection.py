"""inspect_model, read_model_sizes: what is known of a model and the machine without starting an engine."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chairlift.core.errors import ChairliftError, ConfigError, ModelError
from chairlift.llm.build import model_folder, prepare
from chairlift.llm.builtin_models import RANDOM
from chairlift.llm.options import Options

DENSE_BYTES = 2
"""Bytes of a number without codes, for a mean over many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What config.json says about a model, whether or not Chairlift runs it.

    Attributes:
        content: the object in config.json; of a GGUF file with a `quantization_config` of the method "gguf", which has
            the `bits` of a weight in the layers, and `table_bits` and `head_bits` where they are known.
        config: the fields of the loader's DecoderConfig; None for an architecture that is not Chairlift's own.
        problems: why the model cannot be run as it is.
    """

    content: Mapping[str, Any]
    config: Mapping[str, Any] | None
    problems: tuple[str, ...]


def read_model_sizes(model: str | None, revision: str | None = None) -> ModelSizes:
    """Read config.json of a model, which is named as in build_service; of a hub id nothing else is downloaded.

    Raises ModelError when there is no such model or no config.json.
    """
    from chairlift.model.config.decoder_config import DecoderConfig
    from chairlift.model.config.gguf_folder import gguf_file_of
    from chairlift.model.config.model_folder import read_json
    from chairlift.model.config.quantized_checkpoint import QUANTIZATION_FIELDS, check_quantization
    from chairlift.model.config.select_model_config import parse_config

    folder = model_folder(model, revision, config_only=True)
    if folder is None:
        raise ConfigError(f"{RANDOM} has no config.json, from which its sizes could be read", option="model")
    content, config, problems = read_json(folder / "config.json"), None, []
    try:
        parsed = parse_config({**content, **dict.fromkeys(QUANTIZATION_FIELDS)})
        config = asdict(parsed) if isinstance(parsed, DecoderConfig) else None
    except ModelError as error:
        problems.append(error.message)
    try:
        check_quantization(content)
    except ModelError as error:
        problems.append(error.message)
    if gguf_file_of(folder) is not None and config is not None:
        content = {**content, "quantization_config": _gguf_entry(folder, str(config["architecture"]))}
    return ModelSizes(content=content, config=config, problems=tuple(problems))


def _gguf_entry(folder: Path, architecture: str) -> dict[str, Any]:
    """Return the bits of weights in the folder of a GGUF file, as ModelSizes.content has them. Raises ModelError."""
    from chairlift.model.weights.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(folder, architecture)
    kept = checkpoint.code_bytes()
    sizes = {name: math.prod(each.shape) for name, each in checkpoint.tensors.items() if len(each.shape) == 2}
    places = {"bits": "model.layers.", "table_bits": "model.embed_tokens.", "head_bits": "lm_head."}
    entry: dict[str, Any] = {"quant_method": "gguf"}
    for key, beginning in places.items():
        own = [name for name in sizes if name.startswith(beginning)]
        if own:
            num_bytes = sum(kept.get(name, DENSE_BYTES * sizes[name]) for name in own)
            entry[key] = 8 * num_bytes / sum(sizes[name] for name in own)
    return {"head_bits": entry["table_bits"], **entry} if "table_bits" in entry else entry


def resolve_dtype_option(option: str, stored: str | None) -> str:
    """Return the dtype to compute in: that of the option `dtype`, or for "auto" the stored one, else the default."""
    from chairlift.model.device.dtypes import canonical_dtype, resolve_dtype

    return resolve_dtype(canonical_dtype(option), stored)


def inspect_machine() -> dict[str, Any]:
    """Return devices, threads, memory limits and attention backends of torch. Raises ImportError."""
    from chairlift.model.machine_and_model_report import inspect_machine

    return inspect_machine()


def inspect_model(model: str | None, options: Options) -> tuple[dict[str, Any], list[ChairliftError]]:
    """Return a model's requirements with these options, without loading it, and every problem found.

    The model is named as in build_service; RANDOM has no folder, so its facts are empty.
    """
    from chairlift.model.config.runner_config import RunnerConfig
    from chairlift.model.machine_and_model_report import inspect_model

    facts: dict[str, Any] = {}
    problems: list[ChairliftError] = []
    prepared = None
    try:
        prepared = prepare(model, options, starts=False)
    except ChairliftError as error:
        problems.append(error)
    try:
        folder = model_folder(model, options.get("revision"), hf_file=options.get("hf_file"))
    except ChairliftError:
        return facts, problems
    if folder is None:
        return facts, problems
    facts["folder"] = str(folder)
    runner = RunnerConfig() if prepared is None else RunnerConfig.decode(prepared.spec.payload)
    report = inspect_model(folder, runner)
    known = {problem.message for problem in problems}
    problems += [problem for problem in report.problems if problem.message not in known]
    facts["has_tokenizer"] = (folder / "tokenizer.json").exists()
    if prepared is not None and prepared.chat_template is not None and prepared.chat_template.text:
        abilities = prepared.chat_template.abilities(with_tools=True)
        facts["chat_template"] = {"abilities": abilities.as_json(), "forms": abilities.forms()}
    return facts | report.facts, problems
