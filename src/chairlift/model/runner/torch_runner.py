"""TorchRunner: a Runner that turns plans into tokens with a torch model.

    StepPlan ─► SlotTables (batch.py) ─► CausalLM over the paged cache ─► Sampler ─► StepResult
                                                                            ▲
                                                                          Masks

A launch computes its step before it returns, all but the head where masks have still to come; threaded.py puts
launches into a thread where two shall be in flight. Whatever a launch raises leaves the runner usable: state is by
slot, and a NewSequence replaces it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chairlift.core.clock import SystemClock
from chairlift.core.errors import ChairliftError, ConfigError
from chairlift.engine.runner.base import Runner, RunnerInfo
from chairlift.engine.step_plan import StepPlan, StepResult, TokenMasks
from chairlift.model.attention.base import KV, AttentionBackend
from chairlift.model.attention.registry import make_backend, resolved
from chairlift.model.layers.causal_lm import CausalLM, ForwardContext, TakesPlans
from chairlift.model.loading.checkpoint import fingerprint
from chairlift.model.loading.model_config import DTYPES, ModelConfig
from chairlift.model.loading.registry import load_model, torch_dtype
from chairlift.model.loading.tiny_model import tiny_model
from chairlift.model.model_backend import Execution, check_kernels, choose_execution
from chairlift.model.runner.host_memory import keep_freed_memory
from chairlift.model.runner.input_batch import SlotTables
from chairlift.model.runner.kv_memory import Pool, free_memory, size_pool
from chairlift.model.runner.memory_shapes import shapes
from chairlift.model.runner.page_prefault import Populator
from chairlift.model.runner.runner_config import RunnerConfig
from chairlift.model.runner.warmup import warmup_plans
from chairlift.model.sampling.custom_processors import import_factories
from chairlift.model.sampling.lm_head_output import Scored, Wanted
from chairlift.model.sampling.prompt_logprobs import PromptScores, Scores
from chairlift.model.sampling.sampler import Drawn, Sampler
from chairlift.model.sampling.sampling_ops import Drawing, TorchDrawing


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        model: its parameters are on `device`.
        config: its dtype is the one as loaded.
        device: where steps run.
        model_id: names the weights.
        attention: makes the backend that its layers use; None for the one of the options.
        chunk_tokens, cpus: see RunnerInfo.
        report: (name, value) of how it runs, for people.
        drawing: who draws tokens from its logits.
        torch_threads: that torch may have in the engine's thread, None for as many as it wants.
    """

    model: CausalLM
    config: ModelConfig
    device: torch.device
    model_id: str
    attention: Callable[[], AttentionBackend] | None = None
    chunk_tokens: int | None = None
    cpus: tuple[int, ...] = ()
    report: tuple[tuple[str, str], ...] = ()
    drawing: Drawing = field(default_factory=TorchDrawing)
    torch_threads: int | None = None


@dataclass(frozen=True, slots=True)
class _Engine:
    """What a started runner works with."""

    loaded: LoadedModel
    backend: AttentionBackend
    kv: list[KV]
    tables: SlotTables
    sampler: Sampler
    scores: PromptScores
    populator: Populator
    by_plan: TakesPlans | None

    def forward(self, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """Run the layers for a plan whose news the tables have.

        Returns hidden states [T, H], or padded to more, and which of them are drawn from: integers [R].
        """
        if self.by_plan is not None:
            hidden = self.by_plan.forward_plan(plan, self.tables, self.kv)
            return hidden, torch.from_numpy(plan.num_new_tokens.cumsum()[plan.sample_rows] - 1)
        inputs = self.tables.inputs(plan, self.loaded.device)
        context = ForwardContext(inputs.batch, self.kv, self.backend, self.backend.plan(inputs.batch))
        return self.loaded.model.forward(inputs.input_ids, context), inputs.batch.logit_rows


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step that waits for its draws.

    Attributes:
        plan: the step's.
        head: says of its sample rows what is wanted, and where the states were not computed before computes the step.
        scores, faults: of prompts.
    """

    plan: StepPlan
    head: Callable[[Wanted], Scored] | None
    scores: Scores
    faults: dict[int, ChairliftError]


class TorchRunner:
    """A Runner (engine/runner/base.py) over a CausalLM.

    Owns: the paged cache, block tables and sampling state of all slots, results not yet collected.
    """

    def __init__(self, config: RunnerConfig, loaded: LoadedModel | None = None) -> None:
        """Take the options; where the model is already `loaded`, the options model, dtype and device are unused."""
        self._config = config
        self._given = loaded
        self._engine: _Engine | None = None
        self._results: deque[StepResult | _Begun] = deque()
        self._masks: dict[int, TokenMasks] = {}

    def start(self) -> RunnerInfo:
        """Load the model, size and allocate the cache.

        Raises ConfigError for an option that cannot be, ModelError for the model folder.
        """
        config, clock = self._config, SystemClock()
        check_options(config)
        began = clock.now()
        loaded = self._given or load(config)
        loaded_at = clock.now()
        if loaded.torch_threads is not None:
            torch.set_num_threads(loaded.torch_threads)  # of this thread, and of those that are new to torch
        if loaded.device.type == "cpu":
            keep_freed_memory()
        backend = loaded.attention() if loaded.attention else make_backend(config.attention_backend)
        max_model_len = loaded.config.context_length(config.max_model_len)
        pool = self._size(loaded, max_model_len)
        kv = self._allocate(loaded, backend, pool, max_model_len)
        model, slots = loaded.model, config.max_running_requests
        tables = SlotTables(slots, len(model.groups.windows), config.block_size, model.vocab_size, padded=model.padded)
        factories = import_factories(config.logits_processors)
        sampler = Sampler(slots, model.vocab_size, factories, loaded.drawing)
        scores = PromptScores(slots, model.vocab_size, loaded.drawing)
        populator = Populator(tensor for each in kv for tensor in (each.key, each.value) if tensor.device.type == "cpu")
        populator.start()
        by_plan = model if isinstance(model, TakesPlans) else None
        self._engine = _Engine(loaded, backend, kv, tables, sampler, scores, populator, by_plan)
        return RunnerInfo(
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            num_blocks=pool.num_blocks,
            block_size=config.block_size,
            block_bytes=pool.page_bytes,
            windows=model.groups.windows,
            model_id=loaded.model_id,
            logits_processors=tuple(config.logits_processors),
            preferred_prefill_tokens=loaded.chunk_tokens,
            busy_cpus=loaded.cpus,
            startup_report=(
                ("model", f"{config.model or 'tiny random model'} ({loaded.config.architecture})"),
                ("device", str(loaded.device)),
                ("dtype", str(loaded.config.dtype)),
                ("attention", "native" if loaded.attention else resolved(config.attention_backend)),
                *loaded.report,
                ("max_model_len", f"{max_model_len} (the model's limit is {loaded.config.max_context})"),
                *pool.report,
                ("seconds to load", f"{loaded_at - began:.2f}"),
                ("seconds to make the cache", f"{clock.now() - loaded_at:.2f}"),
            ),
        )

    def launch(self, plan: StepPlan) -> None:
        """Compute a step; it is sampled at once, unless some of it waits for masks.

        Raises whatever the model raises; TokenOutOfRange for an input id that does not exist. The step is void then.
        """
        engine = self._engine
        assert engine is not None, "launch before start, or after stop"
        engine.populator.step_begins()
        masks = self._masks.pop(plan.step_id, None)
        waits = len(plan.masked_samples) > 0 and masks is None
        with torch.inference_mode():
            begun = _begin(engine, plan, waits=waits)
            self._results.append(begun if waits else _end(engine, begun, masks))

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Take what may be drawn in some rows of a step that was not collected, launched or not."""
        self._masks[step_id] = masks

    def collect(self) -> StepResult:
        """Return the oldest result that was not collected; samples it if it waited for masks."""
        assert self._results, "collect without a launch"
        result, engine = self._results.popleft(), self._engine
        if isinstance(result, StepResult):
            return result
        assert engine is not None, "collect after stop"
        number = result.plan.step_id
        masks = self._masks.pop(number, None)
        assert masks is not None, f"step {number} waits for masks"
        self._masks = {later: kept for later, kept in self._masks.items() if later > number}  # of void steps
        with torch.inference_mode():
            return _end(engine, result, masks)

    def warmup(self) -> None:
        """Compute warmup.py's steps with tables and a sampler of their own; they read block 0 and write nothing.

        Every page of the cache is there when it returns.
        """
        assert self._engine is not None, "warm-up before start, or after stop"
        assert not self._results, "a warm-up while steps are in flight"
        config, model = self._config, self._engine.loaded.model
        groups, slots = len(model.groups.windows), config.max_running_requests
        tables = SlotTables(slots, groups, config.block_size, model.vocab_size, writes=False, padded=model.padded)
        drawing = self._engine.loaded.drawing
        sampler = Sampler(slots, model.vocab_size, drawing=drawing)
        scores = PromptScores(slots, model.vocab_size, drawing)
        engine = replace(self._engine, tables=tables, sampler=sampler, scores=scores)
        max_model_len = engine.loaded.config.context_length(config.max_model_len)
        with torch.inference_mode():
            for plan in warmup_plans(
                config.max_batch_tokens, slots, max_model_len, config.block_size, groups, model.padded
            ):
                _end(engine, _begin(engine, plan, waits=False), None)
        self._engine.populator.wait()

    def stop(self) -> None:
        """Free the model and its cache."""
        if self._engine is not None:
            self._engine.populator.stop()
        was_on_cuda = self._engine is not None and self._engine.loaded.device.type == "cuda"
        self._engine = None
        self._given = None
        self._results.clear()
        self._masks.clear()
        if was_on_cuda:
            torch.cuda.empty_cache()

    def _size(self, loaded: LoadedModel, max_model_len: int) -> Pool:
        config = self._config
        pool, step = shapes(config, loaded.config, loaded.model.groups, max_model_len)
        return size_pool(
            pool, step, free_memory(loaded.device), on_host=loaded.device.type != "cuda",
            max_memory=config.max_memory, num_blocks=config.num_blocks,
        )  # fmt: skip

    def _allocate(self, loaded: LoadedModel, backend: AttentionBackend, pool: Pool, max_model_len: int) -> list[KV]:
        config, model = self._config, loaded.model
        try:
            kv = backend.alloc_kv(
                model.groups.layers_per_group, pool.num_blocks, config.block_size, model.num_kv_heads, model.head_dim,
                torch_dtype(loaded.config.dtype), loaded.device,
            )  # fmt: skip
            backend.reserve(
                config.max_running_requests, config.max_batch_tokens, -(-max_model_len // config.block_size)
            )
        except (MemoryError, OSError, RuntimeError) as error:
            raise ConfigError(f"cannot allocate {pool.num_blocks} blocks: {error}", option="num_blocks") from error
        return kv


def build(payload: bytes) -> Runner:
    """Make a runner from the bytes of a RunnerConfig: the factory "chairlift.model.runner.torch_runner:build"."""
    return TorchRunner(RunnerConfig.decode(payload))


def load(config: RunnerConfig) -> LoadedModel:
    """Load the model that the options name. Raises ConfigError and ModelError."""
    check_options(config)
    device = pick_device(config.device)
    chosen: list[Execution] = []

    def execution(shape: ModelConfig) -> Execution:
        name = _name_of(config, shape) if config.model else None
        chosen.append(choose_execution(config, shape, device, name))
        return chosen[0]

    how: Any = {
        "dtype": config.dtype, "device": device, "max_model_len": config.max_model_len, "execution": execution
    }  # fmt: skip
    if config.model == "":
        model, shape = tiny_model(seed=config.seed, **how)
    else:
        model, shape = load_model(Path(config.model), **how)
    name, runs = _name_of(config, shape), chosen[0]
    attention, report, drawing = runs.attention(), runs.report(), runs.drawing()
    return LoadedModel(
        model, shape, device, name, attention, runs.chunk_tokens, runs.cpus, report, drawing, runs.torch_threads
    )


def _name_of(config: RunnerConfig, shape: ModelConfig) -> str:
    """Name the weights as they are computed with."""
    if config.model == "":
        return f"tiny-random-{config.seed}-{shape.dtype}"
    return fingerprint(Path(config.model), f"{shape.dtype} {config.quantization}")


def _begin(engine: _Engine, plan: StepPlan, *, waits: bool) -> _Begun:
    """Take over the plan's news and run the model, as far as it is not put off to the draws, which may `wait`."""
    for slot in plan.released_slots:
        engine.sampler.release(slot)
        engine.scores.release(slot)
    engine.tables.apply(plan)
    for new in plan.new_sequences:
        engine.sampler.admit(new)
        engine.scores.admit(new)
    if len(plan.block_copies):
        engine.backend.copy_blocks(engine.kv, torch.from_numpy(plan.block_copies).to(engine.loaded.device))
    if not plan.num_rows:
        return _Begun(plan, None, (), {})
    by_plan = engine.by_plan
    if by_plan is not None and len(plan.sample_rows) and not waits and not engine.scores.are_wanted:
        return _Begun(plan, partial(by_plan.score_plan, plan, engine.tables, engine.kv), (), {})
    hidden, drawn_from = engine.forward(plan)
    scores, faults = engine.scores.score(plan, hidden, engine.loaded.model.logits)
    if not len(plan.sample_rows):
        return _Begun(plan, None, scores, faults)
    is_all = np.array_equal(plan.sample_rows, np.arange(len(hidden)))
    # All of them are drawn from before the next step comes, where nothing is waited for.
    states = hidden if is_all and not waits else hidden.index_select(0, drawn_from)
    return _Begun(plan, partial(engine.loaded.model.head, states), scores, faults)


def _end(engine: _Engine, begun: _Begun, masks: TokenMasks | None) -> StepResult:
    """Draw from what the head says of the states."""
    plan, drawn = begun.plan, Drawn(np.empty(0, np.int32))
    if begun.head is not None:
        slots = plan.slots[plan.sample_rows].astype(np.int64)
        drawn = engine.sampler.sample(begun.head, slots, masks)
        engine.tables.remember(slots, drawn.tokens)
    faults: dict[int, ChairliftError] = dict(begun.faults)
    for index, error in sorted(drawn.faults.items()):
        faults.setdefault(int(plan.sample_rows[index]), error)
    return StepResult(
        step_id=plan.step_id,
        tokens=drawn.tokens,
        cu_tokens=np.arange(len(drawn.tokens) + 1, dtype=np.int32),
        logprobs=drawn.logprobs,
        row_errors=tuple(faults.items()),
        prompt_logprobs=begun.scores,
    )


def check_options(config: RunnerConfig) -> None:
    """Raise ConfigError for an option that cannot be, whatever the model."""
    if config.dtype not in ("auto", *DTYPES):
        known = ", ".join(("auto", *DTYPES))
        raise ConfigError(f"dtype {config.dtype!r} is unknown; known are {known}", option="dtype")
    check_kernels(config)
    low = {
        "block_size": (config.block_size, 1), "num_blocks": (config.num_blocks, 1),
        "max_batch_tokens": (config.max_batch_tokens, 1), "max_running_requests": (config.max_running_requests, 1),
        "max_model_len": (config.max_model_len, 2),
    }  # fmt: skip
    for name, (value, least) in low.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}", option=name)


def pick_device(name: str) -> torch.device:
    """Return the device of an option `device`. Raises ConfigError for one that cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used: {said}", option="device") from error
    return device
