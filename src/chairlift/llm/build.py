"""The one place that joins an engine to its runner, its tokenizer and the model's defaults."""

import difflib
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.engine.client.base import EngineClient
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.base import RunnerSpec
from chairlift.engine.scheduler.batching_policy import make_batching_policy
from chairlift.engine.scheduler.waiting_queue.base import check_policy
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.llm.model_names import DEMO, RANDOM, embedded_folder, tell_no_model
from chairlift.llm.options import Options
from chairlift.llm.text_service import ModelDefaults, Service
from chairlift.llm.tracing_client import ProfiledClient, open_trace
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.tokenizer import ByteTokenizer, HFTokenizer, Tokenizer

if TYPE_CHECKING:
    from chairlift.engine.client.process import PrespawnedProcess
    from chairlift.model.runner.runner_config import RunnerConfig

log = logging.getLogger(__name__)

RUNNER = "chairlift.model.runner.torch_runner:build"
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything about a service but its engine: what can be read and checked in a moment, before weights are loaded.

    One that is not started is closed.

    Attributes:
        model: what the user named.
        spec: how the runner is made.
        scheduler: the engine's part of the options.
        caching: whether equal prefixes are shared.
        client: "inline" or "process".
        profile: where a trace of the steps goes, "" for nowhere.
        tokenizer: None when the model folder has none.
        chat_template: None with the tokenizer.
        defaults: of the model.
        seeds: where the seeds of requests without one come from.
        launched: the process in which the engine will be, where it will be in one.
    """

    model: str
    spec: RunnerSpec
    scheduler: SchedulerConfig
    caching: bool
    client: str
    profile: str
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    defaults: ModelDefaults
    seeds: random.Random
    launched: "PrespawnedProcess | None" = None

    def start(self) -> Service:
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
        return Service(
            client=client, tokenizer=self.tokenizer, chat_template=self.chat_template, defaults=self.defaults,
            model=self.model, max_queue_size=self.scheduler.max_queue_size, seeds=self.seeds,
        )  # fmt: skip

    def vocabulary(self) -> GrammarTokenizer | None:
        """Return what structured output is made with; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        return GrammarTokenizer(self.tokenizer.serialized().encode(), self.defaults.eos_token_ids)

    def close(self) -> None:
        """Let go what was launched for an engine that does not start."""
        if self.launched is not None:
            self.launched.close()

    def _client(self) -> EngineClient:
        trace = open_trace(self.profile) if self.profile else None
        try:
            client = CLIENTS[self.client](self)
        except BaseException:
            if trace is not None:
                trace.close()
            raise
        return client if trace is None else ProfiledClient(client, trace)


def prepare(model: str | Path | None, options: Options, *, starts: bool = True) -> Prepared:
    """Check options and model folder; see build_service. Imports no torch.

    Where the engine will be in a process of its own, that is there already and does: it takes a second. One that only
    wants to know whether it could be says that it never `starts`.
    """
    scheduler = check_options(options)
    given: dict[str, Any] = dict(options)
    kind, seed = given.get("client", "inline"), given.pop("seed", None)
    launched = _launch() if kind == "process" and starts else None
    try:
        folder = folder_of(model, given.get("revision"))
        spec = RunnerSpec(RUNNER, _runner_config(folder, given).encode())
        tokenizer, chat = _text(folder)
        return Prepared(
            model=DEMO if model is None else str(model), spec=spec, scheduler=scheduler,
            caching=given.get("enable_prefix_caching", True), client=kind, profile=given.get("profile") or "",
            tokenizer=tokenizer, chat_template=chat, defaults=_defaults(folder, tokenizer),
            seeds=random.SystemRandom() if seed is None else random.Random(seed), launched=launched,
        )  # fmt: skip
    except BaseException:
        if launched is not None:
            launched.close()
        raise


def check_options(options: Options) -> SchedulerConfig:
    """Return the engine's part of the options. Raises ConfigError for what no model could be run with."""
    given: dict[str, Any] = dict(options)
    _check_names(given)
    _check_types(given)
    scheduler = SchedulerConfig(**_part(given, SchedulerConfig))
    check_policy(scheduler.policy)
    make_batching_policy(scheduler)
    return scheduler


def build_service(model: str | Path | None, options: Options) -> Service:
    """Load a model and start its engine.

    Args:
        model: a folder, a hub id, or a name of naming.py; None is the embedded demo model.
        options: see Options.

    Without a model the log says which one runs. Raises ConfigError for an option that cannot be, ModelError for a
    model that cannot be loaded.
    """
    service = prepare(model, options).start()
    if model is None:
        tell_no_model()
    return service


def folder_of(model: str | Path | None, revision: str | None = None) -> Path | None:
    """Return the folder of a model; None for the tiny random one, which has none.

    Args:
        model: a folder, a hub id, or a name of naming.py; None is the embedded demo model.
        revision: branch, tag or commit of a hub id.

    Raises ModelError when there is no such model, ConfigError for a revision of what has none.
    """
    name = DEMO if model is None else str(model)
    if name not in (DEMO, RANDOM):
        from chairlift.model.loading.hub import resolve_model

        return resolve_model(name, revision)
    if revision is not None:
        raise ConfigError(f"{name} comes with Chairlift and has no revision {revision!r}", option="revision")
    return embedded_folder(name)


def examine_machine() -> dict[str, Any]:
    """Return what torch finds here: devices, threads, limits of memory, attention backends. Raises ImportError."""
    from chairlift.model.loading.model_report import survey_machine

    return survey_machine()


def examine_model(model: str | None, options: Options) -> tuple[dict[str, Any], list[ChairliftError]]:
    """Find out what a model would take with these options, without loading it, and everything that is wrong with it.

    The model is named as in build_service; RANDOM has no folder, so nothing is known of it.
    """
    from chairlift.model.loading.model_report import survey_model
    from chairlift.model.runner.runner_config import RunnerConfig

    facts: dict[str, Any] = {}
    problems: list[ChairliftError] = []
    prepared = None
    try:
        prepared = prepare(model, options, starts=False)
    except ChairliftError as error:
        problems.append(error)
    try:
        folder = folder_of(model, options.get("revision"))
    except ChairliftError:
        return facts, problems
    if folder is None:
        return facts, problems
    facts["folder"] = str(folder)
    runner = RunnerConfig() if prepared is None else RunnerConfig.decode(prepared.spec.payload)
    found = survey_model(folder, runner)
    known = {problem.message for problem in problems}
    problems += [problem for problem in found.problems if problem.message not in known]
    facts["has_tokenizer"] = (folder / "tokenizer.json").exists()
    return facts | found.facts, problems


def _check_names(given: Mapping[str, Any]) -> None:
    known = list(Options.__annotations__)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there is {', '.join(known)}"
            raise ConfigError(f"unknown option {name!r}{hint}", option=name)


def _check_types(given: Mapping[str, Any]) -> None:
    if (kind := given.get("client", "inline")) not in tuple(CLIENTS):
        raise ConfigError(f"unknown client {kind!r}; there is {', '.join(CLIENTS)}", option="client")
    try:
        msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        said, _, name = str(error).rpartition(" - at `$.")
        name = name.removesuffix("`")
        raise ConfigError(f"{name}: {said[:1].lower()}{said[1:]}", option=name) from None


def _part(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Those of the options that this config has a field for."""
    names = {spec.name for spec in fields(kind)}
    return {name: value for name, value in given.items() if name in names}


def _runner_config(folder: Path | None, given: Mapping[str, Any]) -> "RunnerConfig":
    from chairlift.model.runner.runner_config import RunnerConfig

    return RunnerConfig(model="" if folder is None else str(folder), **_part(given, RunnerConfig))


def _text(folder: Path | None) -> tuple[Tokenizer | None, ChatTemplate | None]:
    if folder is None:
        tokenizer: Tokenizer = ByteTokenizer()
        return tokenizer, ChatTemplate({"default": TINY_CHAT_TEMPLATE}, tokenizer)
    if not (folder / "tokenizer.json").exists():
        return None, None
    tokenizer = HFTokenizer.load(folder)
    return tokenizer, ChatTemplate.load(folder, tokenizer)


def _defaults(folder: Path | None, tokenizer: Tokenizer | None) -> ModelDefaults:
    """The model folder's own, and the tokenizer's end of sequence where the folder names none."""
    own = () if tokenizer is None else tokenizer.eos_token_ids
    if folder is None:
        return ModelDefaults(eos_token_ids=own)
    from chairlift.model.loading.generation_config import read_generation_defaults
    from chairlift.model.loading.model_config import read_config

    read = read_generation_defaults(folder, read_config(folder))
    if read.sampling:
        log.info("defaults of generation_config.json: %s", dict(read.sampling))
    return ModelDefaults(eos_token_ids=read.eos_token_ids or own, sampling=read.sampling, max_tokens=read.max_tokens)


def _inline(made: Prepared) -> EngineClient:
    loop = EngineLoop(made.spec.build(), made.scheduler, enable_prefix_caching=made.caching)
    return InlineClient(loop, made.vocabulary())


def _process(made: Prepared) -> EngineClient:
    from chairlift.engine.client.process import start_engine_process

    return start_engine_process(
        made.spec, made.scheduler, enable_prefix_caching=made.caching, vocabulary=made.vocabulary(),
        launched=made.launched,
    )  # fmt: skip


def _launch() -> "PrespawnedProcess | None":
    """Have the process there early; where there can be none now, whoever starts the engine will say so."""
    from chairlift.engine.client.process import PrespawnedProcess

    try:
        return PrespawnedProcess([RUNNER.partition(":")[0]])
    except OSError:
        return None


CLIENTS: Mapping[str, Callable[[Prepared], EngineClient]] = {"inline": _inline, "process": _process}
