"""EngineSource: where a manager gets its engine: from a loaded model of transformers, a model folder, or a hub id."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.engine.client.inline import InlineClient
from chairlift.llm.build import model_folder, prepare, validate_options
from chairlift.llm.build_from_module import build_module_client
from chairlift.llm.options import Options
from chairlift.llm.transformers_compat.option_names_in_errors import naming_given_options
from chairlift.llm.transformers_compat.settings import ManagerSettings, resolve_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSource:
    """A model, and how to start engines of it.

    Attributes:
        name: name of the model, for messages.
        settings: the manager's options.
        eos_token_ids: token ids that end an output where neither the settings nor the request name any.
        start: loads the model where that is needed, and starts an engine. Raises ModelError and ConfigError.
    """

    name: str
    settings: ManagerSettings
    eos_token_ids: tuple[int, ...]
    start: Callable[[], InlineClient]


def engine_source(
    model: Any, generation_config: Any, continuous_batching_config: Any, knobs: Mapping[str, Any]
) -> EngineSource:
    """Return the source of a model: a module of transformers, whose parameters are shared, or a folder or hub id.

    Without a generation_config that of the model applies. Raises ModelError for a model that does not exist,
    ConfigError (UnknownOption) for an option that cannot be used.
    """
    if isinstance(model, str | Path):
        return _of_folder(model, generation_config, continuous_batching_config, knobs)
    if not (hasattr(model, "forward") and hasattr(model, "config") and hasattr(model, "parameters")):
        raise ModelError(
            f"a model is a module of transformers, a folder or a hub id, got an object of {type(model).__name__}"
        )
    own, origin = generation_config, ""
    if generation_config is None:
        own, origin = getattr(model, "generation_config", None), "the generation_config of the model itself"
    settings = resolve_settings(own, continuous_batching_config, knobs, origin=origin)
    options = settings.options
    with naming_given_options(settings.given_names):
        validate_options(options)

    def start() -> InlineClient:
        with naming_given_options(settings.given_names):
            return build_module_client(model, options)

    return EngineSource(name=type(model).__name__, settings=settings, eos_token_ids=_eos_of(model), start=start)


def _of_folder(
    model: str | Path, generation_config: Any, continuous_batching_config: Any, knobs: Mapping[str, Any]
) -> EngineSource:
    folder = model_folder(model, knobs.get("revision"), hf_file=knobs.get("hf_file"))
    own, origin = generation_config, ""
    if generation_config is None:
        own, origin = _generation_config_of(folder), "generation_config.json of the model folder"
    settings = resolve_settings(own, continuous_batching_config, knobs, origin=origin)
    options = Options(**{**settings.options, "engine_mode": "inline"})
    with naming_given_options(settings.given_names):
        prepared = prepare(model, options)

    def start() -> InlineClient:
        with naming_given_options(settings.given_names):
            client = prepared.start().client
        assert isinstance(client, InlineClient)
        return client

    return EngineSource(
        name=str(model), settings=settings, eos_token_ids=prepared.defaults.eos_token_ids, start=start
    )  # fmt: skip


def _generation_config_of(folder: Path | None) -> Mapping[str, Any]:
    """Return the object in a folder's generation_config.json; prepare() reports a file that cannot be read."""
    path = None if folder is None else folder / "generation_config.json"
    if path is None or not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _eos_of(model: Any) -> tuple[int, ...]:
    """Return the end-of-sequence ids of a module: those of its generation_config, else those of its config.

    Null and ids below 0 name no token.
    """
    for config in (getattr(model, "generation_config", None), model.config):
        eos = getattr(config, "eos_token_id", None)
        tokens = eos if isinstance(eos, list | tuple) else [eos]
        if ids := tuple(int(token) for token in tokens if token is not None and int(token) >= 0):
            return ids
    return ()
