"""build_service: composes an engine with its runner, its tokenizer and the model's defaults."""

import difflib
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chairlift.core.errors import ConfigError, InvalidRequest, ModelError, UnknownOption
from chairlift.engine.client.base import EngineClient
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import DRAFT_MODEL_METHOD, SchedulerConfig, with_auto_length
from chairlift.engine.drafters.draft_model import MAX_STEP_TOKENS
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.ipc.engine_process import PrespawnedProcess
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.scheduler.batching_policy import make_batching_policy
from chairlift.engine.scheduler.waiting_queue.base import check_policy
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.llm.adapter_store import AdapterStore
from chairlift.llm.builtin_models import DEMO, RANDOM, embedded_folder, warn_no_model
from chairlift.llm.launch_engine import RUNNER, launch_engine
from chairlift.llm.model_defaults import DEFAULT_POOLING, ModelDefaults
from chairlift.llm.options import Options
from chairlift.llm.profiling_client import ProfilingClient, open_profile
from chairlift.llm.speculative_config import parse_speculative_config
from chairlift.llm.text_service import TextService
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.chat_template_files import read_template, read_templates
from chairlift.text.reasoning_formats import AUTO
from chairlift.text.tokenizer import HFTokenizer, Tokenizer, first_difference

if TYPE_CHECKING:
    from chairlift.model.config.runner_config import RunnerConfig

log = logging.getLogger(__name__)

DRAFT_CACHE_SHARE = 0.2
"""Share of the memory for KV caches that a draft model's cache gets: its keys and values are as much smaller."""

DRAFT_MEMORY = 0.05
"""Share of the free memory for that cache where max_memory is not set."""

TENSOR_PARALLEL_RUNNER = "chairlift.model.distributed.tensor_parallel_runner:build"
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedService:
    """A service without its engine: all that can be read and checked before loading weights.

    The caller either starts or closes it.

    Attributes:
        model: the name that the user gave.
        spec: how to build the runner.
        scheduler: the engine's part of the options.
        caching: whether requests share equal prefixes.
        engine_mode: "inline" or "process".
        watch: when the engine counts as failed.
        profile: path of the step trace, "" for none.
        tokenizer: None when the model folder has none.
        chat_template: None with the tokenizer.
        defaults: the model's defaults.
        seeds: source of seeds for requests without one.
        launched: the prespawned engine process, None for an inline engine.
        draft_spec: how to build the runner of the draft model, None without one.
        has_adapters: whether requests may have LoRA adapters.
    """

    model: str
    spec: RunnerSpec
    scheduler: SchedulerConfig
    caching: bool
    engine_mode: str
    watch: LivenessConfig
    profile: str
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    defaults: ModelDefaults
    seeds: random.Random
    launched: PrespawnedProcess | None = None
    draft_spec: RunnerSpec | None = None
    has_adapters: bool = False

    def start(self) -> TextService:
        """Load the weights and start the engine. Raises ConfigError, ModelError."""
        if self.tokenizer is None:
            log.warning("%s has no tokenizer.json: prompts must be token ids, outputs have no text", self.model)
        try:
            client = self._client()
        except BaseException:
            self.close()
            raise
        for name, value in client.info.startup_report:
            log.info("%s: %s", name, value)
        return TextService(
            client=client, tokenizer=self.tokenizer, chat_template=self.chat_template, defaults=self.defaults,
            model=self.model, max_queue_size=self.scheduler.max_queue_size, seeds=self.seeds,
            adapters=AdapterStore(client, self.model) if self.has_adapters else None,
        )  # fmt: skip

    def vocabulary(self) -> GrammarTokenizer | None:
        """Return the tokenizer for structured output; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        return GrammarTokenizer(self.tokenizer.serialized().encode(), self.defaults.eos_token_ids)

    def close(self) -> None:
        """Close the process that was launched for an engine that does not start."""
        if self.launched is not None:
            self.launched.close()

    def _client(self) -> EngineClient:
        profile = open_profile(self.profile) if self.profile else None
        try:
            client = CLIENTS[self.engine_mode](self)
        except BaseException:
            if profile is not None:
                profile.close()
            raise
        return client if profile is None else ProfilingClient(client, profile)


def prepare(
    model: str | Path | None, options: Options, *, starts: bool = True, needs_full_length: bool = False,
    needs_device: bool = False, launched: PrespawnedProcess | None = None,
) -> PreparedService:  # fmt: skip
    """Validate options and model folder; see build_service. Does not import torch.

    With engine_mode "process" it launches the engine process, unless it is given as `launched`; an error closes that
    process. `starts=False` only validates what needs no model folder, and launches nothing. `needs_full_length=True`
    rejects a KV cache of fewer `num_blocks` than a request of the model's own limit of tokens needs,
    `needs_device=True` a device that the machine does not have, which the start of the engine would find.
    """
    values: dict[str, Any] = dict(options)
    kind, seed = values.get("engine_mode", "inline"), values.pop("seed", None)
    try:
        scheduler = validate_options(options)
        if launched is None and kind == "process" and starts:
            launched = launch_engine()
        folder = model_folder(model, values.get("revision"), hf_file=values.get("hf_file"))
        runner = runner_config(folder, values)
        if starts:
            _check_start(folder, runner, needs_full_length)
        if needs_device:
            _check_device(runner.device)
        factory = RUNNER if runner.tensor_parallel_size == 1 else TENSOR_PARALLEL_RUNNER
        tokenizer, chat = _text(folder, values)
        if values.get("tokenizer") is not None and folder is not None and tokenizer is not None:
            _check_vocabulary(folder, runner.model_impl, tokenizer)
        draft = None
        if scheduler.speculation.method == DRAFT_MODEL_METHOD:
            draft, runner = _draft_configs(scheduler.speculation.model, runner, folder, tokenizer)
        return PreparedService(
            model=DEMO if model is None else str(model), spec=RunnerSpec(factory, runner.encode()), scheduler=scheduler,
            caching=values.get("enable_prefix_caching", True), engine_mode=kind,
            watch=LivenessConfig(**_options_for(values, LivenessConfig)), profile=values.get("profile") or "",
            tokenizer=tokenizer, chat_template=chat, defaults=_defaults(folder, tokenizer, runner.model_impl),
            seeds=random.SystemRandom() if seed is None else random.Random(seed), launched=launched,
            draft_spec=None if draft is None else RunnerSpec(RUNNER, draft.encode()), has_adapters=runner.enable_lora,
        )  # fmt: skip
    except BaseException:
        if launched is not None:
            launched.close()
        raise


def validate_options(options: Options) -> SchedulerConfig:
    """Return the engine's part of the options. Raises ConfigError for options invalid with any model."""
    values: dict[str, Any] = dict(options)
    _check_names(values)
    _check_types(values)
    speculation = parse_speculative_config(values.get("speculative_config"))
    scheduler = SchedulerConfig(**_options_for(with_auto_length(values), SchedulerConfig), speculation=speculation)
    check_policy(scheduler.scheduling_policy)
    make_batching_policy(scheduler)
    LivenessConfig(**_options_for(values, LivenessConfig))
    return scheduler


def build_service(model: str | Path | None, options: Options) -> TextService:
    """Load a model and start its engine.

    Args:
        model: a folder, a hub id, or a name of builtin_models.py; None is the embedded demo model.
        options: see Options.

    Without a model the log names the one that runs. Raises ConfigError for an invalid option, ModelError for a model
    that cannot be loaded.
    """
    service = prepare(model, options).start()
    if model is None:
        warn_no_model()
    return service


def model_folder(
    model: str | Path | None, revision: str | None = None, *, config_only: bool = False, hf_file: str | None = None
) -> Path | None:  # fmt: skip
    """Return the folder of a model; None for the tiny random one, which has none.

    Args:
        model: a folder, a GGUF file, a hub id, or a name of builtin_models.py; None is the embedded demo model.
        revision: branch, tag or commit of a hub id.
        config_only: of a hub id only config.json is needed.
        hf_file: the GGUF file of a hub id.

    Raises ModelError when the model does not exist, ConfigError for a revision or a file of an embedded model.
    """
    name = DEMO if model is None else str(model)
    if name not in (DEMO, RANDOM):
        from chairlift.model.config.hub import resolve_model

        return resolve_model(name, revision, config_only=config_only, hf_file=hf_file)
    for option, value in (("revision", revision), ("hf_file", hf_file)):
        if value is not None:
            raise ConfigError(f"{name} is part of Chairlift and has no {option} {value!r}", option=option)
    return embedded_folder(name)


def _check_names(values: Mapping[str, Any]) -> None:
    known = list(Options.__annotations__)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; available are {', '.join(known)}"
            raise UnknownOption(f"unknown option {name!r}{hint}", option=name)


def _check_types(values: Mapping[str, Any]) -> None:
    if (kind := values.get("engine_mode", "inline")) not in tuple(CLIENTS):
        raise ConfigError(f"unknown engine_mode {kind!r}; available are {', '.join(CLIENTS)}", option="engine_mode")
    try:
        msgspec.convert(values, Options)
    except msgspec.ValidationError as error:
        message, _, name = str(error).rpartition(" - at `$.")
        name = name.removesuffix("`")
        raise ConfigError(f"{name}: {message[:1].lower()}{message[1:]}", option=name) from None


def _options_for(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the options that are fields of this config."""
    names = {spec.name for spec in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def runner_config(folder: Path | None, values: Mapping[str, Any]) -> "RunnerConfig":
    """Return the runner's part of the options for a model folder; None for a model without one."""
    from chairlift.model.config.quantized_checkpoint import METHOD_NAMES, check_method
    from chairlift.model.config.runner_config import FILE_QUANTIZATION, MODEL_IMPL_ALIASES, RunnerConfig
    from chairlift.model.device.dtypes import canonical_dtype

    own = _options_for(with_auto_length(values), RunnerConfig)
    if "model_impl" in own:
        own["model_impl"] = MODEL_IMPL_ALIASES.get(own["model_impl"], own["model_impl"])
    if (method := own.get("quantization")) in METHOD_NAMES:
        check_method(folder, method)
        own["quantization"] = FILE_QUANTIZATION
    own |= {name: canonical_dtype(own[name]) for name in ("dtype", "kv_cache_dtype") if name in own}
    return RunnerConfig(model="" if folder is None else str(folder), **own)


def _check_start(folder: Path | None, runner: "RunnerConfig", needs_full_length: bool) -> None:
    from chairlift.model.runner.option_checks_for_model import check_start

    check_start(folder, runner, needs_full_length=needs_full_length)


def _check_device(name: str) -> None:
    from chairlift.model.config.device_option import check_device

    check_device(name)


def _text(folder: Path | None, values: Mapping[str, Any]) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Return the tokenizer and the chat template. Raises ConfigError for an option that does not fit them."""
    folders = _text_folders(folder, values.get("tokenizer"))
    if folders and not (folders[0] / "tokenizer.json").exists():
        return None, None
    tokenizer: Tokenizer = HFTokenizer.load(folders[0]) if folders else ByteTokenizer()
    if (file := values.get("chat_template")) is not None:
        sources = {"default": read_template(Path(file))}
    else:
        found = (read_templates(each) for each in folders)
        sources = next((each for each in found if each), {}) if folders else {"default": TINY_CHAT_TEMPLATE}
    defaults = values.get("default_chat_template_kwargs") or {}
    try:
        chat = ChatTemplate(
            sources, tokenizer, default_variables=defaults, reasoning_parser=values.get("reasoning_parser", AUTO)
        )
    except InvalidRequest as error:
        raise ConfigError(error.message, option="default_chat_template_kwargs") from None
    except ModelError as error:
        if file is None:
            raise
        raise ConfigError(f"chat_template {file}: {error.message}", option="chat_template") from error
    if unread := [name for name in defaults if name not in chat.variables]:
        log.warning("the chat template does not read %s of default_chat_template_kwargs", ", ".join(unread))
    return tokenizer, chat


def _check_vocabulary(folder: Path, model_impl: str, tokenizer: Tokenizer) -> None:
    """Raise ConfigError for a tokenizer of another model with ids beyond this model's embedding."""
    from chairlift.model.config.select_model_config import read_config

    rows = read_config(folder, model_impl).vocab_size
    if tokenizer.vocab_size > rows:
        message = f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, the model's embedding has {rows} rows"
        raise ConfigError(message, option="tokenizer")


def _draft_configs(
    model: str, runner: "RunnerConfig", folder: Path | None, tokenizer: Tokenizer | None
) -> tuple["RunnerConfig", "RunnerConfig"]:
    """Return the settings of the draft model's runner, and of the model's own beside it.

    Raises ConfigError for a draft model with other tokens, and ModelError for one that does not exist.
    """
    if not model:
        raise ConfigError(f"method {DRAFT_MODEL_METHOD!r} of speculation needs a model", option="speculative_config")
    draft_folder = model_folder(model)
    draft = replace(
        runner, model="" if draft_folder is None else str(draft_folder), max_batch_tokens=MAX_STEP_TOKENS,
        max_running_requests=min(runner.max_running_requests, MAX_STEP_TOKENS), max_model_len=None,
        fits_length_to_cache=False, tensor_parallel_size=1, logits_processor_factories={},
    )  # fmt: skip
    _check_start(draft_folder, draft, needs_full_length=False)
    _check_same_tokens(model, draft_folder, draft.model_impl, folder, tokenizer)
    if runner.max_memory is None or runner.num_blocks is not None:
        return replace(draft, max_memory=DRAFT_MEMORY), runner
    share = runner.max_memory * DRAFT_CACHE_SHARE
    own = int(share) if isinstance(runner.max_memory, int) else share
    return replace(draft, max_memory=own), replace(runner, max_memory=runner.max_memory - own)


def _check_same_tokens(
    model: str, draft_folder: Path | None, model_impl: str, folder: Path | None, tokenizer: Tokenizer | None
) -> None:
    """Raise ConfigError unless each id of the model is the same token of the draft model."""
    draft, _ = _text(draft_folder, {})
    if tokenizer is None or draft is None:
        if tokenizer is draft and _vocab_size(folder, model_impl) == _vocab_size(draft_folder, model_impl):
            return
        message = "has no tokenizer.json" if draft is None else "has a tokenizer and the model has none"
        raise ConfigError(
            f"the draft model {model} {message}, so that their tokens cannot be compared", option="speculative_config"
        )
    if (token := first_difference(tokenizer, draft)) is not None:
        raise ConfigError(
            f"the draft model {model} has other tokens than the model: id {token} is {draft.token_text(token)!r} there "
            f"and {tokenizer.token_text(token)!r} here; choose a draft model with the same tokenizer",
            option="speculative_config",
        )


def _vocab_size(folder: Path | None, model_impl: str) -> int:
    from chairlift.model.config.select_model_config import read_config

    return 0 if folder is None else read_config(folder, model_impl).vocab_size


def _text_folders(folder: Path | None, tokenizer: str | None) -> list[Path]:
    """Return the folders with the tokenizer and with templates, best first; the tiny random model has none.

    Raises ModelError for a GGUF file whose tokenizer is not supported, unless there is another one.
    """
    from chairlift.model.config.gguf_folder import check_tokenizer
    from chairlift.model.config.hub import resolve_tokenizer

    own = [] if folder is None else [folder]
    if tokenizer is not None:
        return [resolve_tokenizer(tokenizer), *own]
    for each in own:
        check_tokenizer(each)
    return own


def _defaults(folder: Path | None, tokenizer: Tokenizer | None, model_impl: str) -> ModelDefaults:
    """Return the model folder's defaults; the end of sequence is the tokenizer's if it names none."""
    own = () if tokenizer is None else tokenizer.eos_token_ids
    if folder is None:
        return ModelDefaults(eos_token_ids=own)
    from chairlift.model.config.generation_config import read_generation_defaults
    from chairlift.model.config.pooling_config import read_pooling
    from chairlift.model.config.select_model_config import read_config

    read = read_generation_defaults(folder, read_config(folder, model_impl))
    if read.sampling:
        log.info("defaults of generation_config.json: %s", dict(read.sampling))
    return ModelDefaults(
        eos_token_ids=read.eos_token_ids or own, sampling=read.sampling, max_tokens=read.max_tokens,
        pooling=read_pooling(folder) or DEFAULT_POOLING,
    )  # fmt: skip


def _inline(prepared: PreparedService) -> EngineClient:
    draft = prepared.draft_spec
    loop = EngineLoop(
        prepared.spec.build(), prepared.scheduler, enable_prefix_caching=prepared.caching,
        draft_runner=None if draft is None else draft.build(),
    )  # fmt: skip
    return InlineClient(loop, prepared.vocabulary(), prepared.watch)


def _process(prepared: PreparedService) -> EngineClient:
    from chairlift.engine.client.process import start_engine_process

    return start_engine_process(
        prepared.spec, prepared.scheduler, enable_prefix_caching=prepared.caching, vocabulary=prepared.vocabulary(),
        watch=prepared.watch, launched=prepared.launched, draft_spec=prepared.draft_spec,
    )  # fmt: skip


CLIENTS: Mapping[str, Callable[[PreparedService], EngineClient]] = {"inline": _inline, "process": _process}
