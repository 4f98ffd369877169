"""TorchRunner: a Runner that computes step plans with a torch model and samples tokens.

On the host a launch computes its step before it returns, all but the lm_head where masks are still missing; the
threaded runner moves launches into a thread to have two steps in flight. On a CUDA device a launch only gives the
device work, and collect waits for it. An exception of a launch leaves the runner usable: state is kept by slot, and a
NewSequence replaces it.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from chairlift.core.clock import SystemClock
from chairlift.core.errors import ConfigError, ModelError
from chairlift.core.host.process_activity import parent_cpu_seconds
from chairlift.engine.runner.base import AdapterInfo, Runner, RunnerInfo
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult
from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.registry import make_backend
from chairlift.model.attention.thread_count_check import ThreadCheckedAttention
from chairlift.model.backends.batch_invariance_report import batch_invariance, is_batch_invariant
from chairlift.model.backends.communicator import Communicator
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.kv_cache_shape import KVCacheShape, check_num_blocks
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.config.attention_backend_names import resolve_backend_name
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.device_option import check_kv_cache_device, use_device
from chairlift.model.config.gguf_folder import gguf_file_of
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.runner_option_checks import check_options
from chairlift.model.device.huge_page_tensors import keep_freed_memory
from chairlift.model.device.kv_dtype import kv_cache_dtype
from chairlift.model.device.page_prefault import PagePrefaulter
from chairlift.model.device.step_error_translation import StepErrors
from chairlift.model.device.step_thread_count import StepThreadCount
from chairlift.model.kernels.cpu.threads import max_pool_threads, renew_pool_threads
from chairlift.model.layers.causal_lm_protocol import CausalLM, TakesAdapters
from chairlift.model.lora.base_weights import base_weights
from chairlift.model.lora.peft_adapter import AdapterTargets, read_adapter
from chairlift.model.runner.executor_and_cuda_graph_choice import (
    StepExecutor,
    UnreadResult,
    graph_report,
    make_executor,
    run_step,
)
from chairlift.model.runner.free_memory import free_memory
from chairlift.model.runner.kv_cache_sizing import KVCacheSize, agree_on_sizes, size_kv_cache
from chairlift.model.runner.longest_length import size_for_longest
from chairlift.model.runner.memory_profile import profile_steps
from chairlift.model.runner.model_facts import model_facts
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.state_cache_sizing import StateCacheSize, plan_states
from chairlift.model.runner.step_memory_estimate import memory_shapes
from chairlift.model.runner.warmup_and_peak_memory_plans import warmup_plans

NATIVE_MEASURED_SECONDS = 2.0
"""Least seconds of steps in which programs delay the native kernels' threads before there are fewer of them.

Half of the speed is lost by fewer threads beside a client that uses a processor for a moment. The time of the process
that started this one, the API server, does not count: it uses the same processors.
"""


WARMUP_STATES = 8
"""Most sequences of a warm-up step of a model with states."""


@dataclass(frozen=True, slots=True)
class _WaitingStep:
    """A step that waits for the masks of some rows: its plan, and what StepExecutor.forward returned."""

    plan: StepPlan
    step: Any


class TorchRunner:
    """A Runner (engine/runner/base.py) over a CausalLM.

    Owns: the paged cache, block tables and sampling state of all slots, results not yet collected.
    """

    def __init__(
        self, config: RunnerConfig, loaded: LoadedModel | None = None, communicator: Communicator | None = None
    ) -> None:
        """Store the options; with a `loaded` model the options model, dtype and device are unused.

        With a communicator it is the runner of one rank, see load().
        """
        self._config, self._communicator = config, communicator
        self._preloaded = loaded
        self._engine: StepExecutor | None = None
        self._results: deque[StepResult | UnreadResult | _WaitingStep] = deque()
        self._masks: dict[int, TokenMasks] = {}
        self._threads = StepThreadCount(1, apply=torch.set_num_threads)

    def start(self) -> RunnerInfo:
        """Load the model, size and allocate the cache.

        Raises ConfigError for an invalid option, ModelError for an invalid model folder.
        """
        config, clock = self._config, SystemClock()
        check_options(config)
        began = clock.now()
        loaded = self._preloaded or load(config, self._communicator)
        check_kv_cache_device(config.kv_cache_dtype, loaded.device)
        use_device(loaded.device)
        loaded_at = clock.now()
        if loaded.device.type == "cpu":
            self._threads = _use_threads(loaded)
            keep_freed_memory()
        kind = _attention_kind(config, loaded)
        backend = loaded.attention() if loaded.attention else make_backend(*kind, deterministic=config.deterministic)
        max_model_len, pool, states = self._size(loaded, backend)
        if config.fits_length_to_cache:
            self._config = config = replace(config, max_model_len=max_model_len)
        kv = self._allocate(loaded, backend, pool)
        cache = None if states is None else self._allocate_states(loaded, states)
        if self._threads.count > 1 and loaded.attention is None:
            backend = ThreadCheckedAttention(backend, self._threads)
        model = loaded.model
        self._engine = make_executor(loaded, config, backend, kv, _prefaulter(kv), cache)
        return RunnerInfo(
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            num_blocks=pool.num_blocks,
            block_size=config.block_size,
            block_bytes=pool.page_bytes,
            max_cached_blocks=pool.max_cached_blocks,
            windows=model.groups.windows,
            **({} if states is None else states.info()),
            model_id=loaded.model_id,
            logits_processors=tuple(config.logits_processor_factories),
            preferred_prefill_tokens=loaded.chunk_tokens,
            busy_cpus=loaded.cpus,
            may_have_low_priority=loaded.attention is not None,
            hidden_size=loaded.config.hidden_size,
            device=str(loaded.device),
            is_asynchronous=self._engine.is_asynchronous,
            no_drafts_reason=_no_drafts_reason(self._engine, deterministic=config.deterministic),
            facts=model_facts(loaded.weights_config, config.quantization, loaded.kept),
            startup_report=(
                ("model", f"{_shown_model(config.model)} ({loaded.config.architecture})"),
                ("device", str(loaded.device)),
                ("dtype", str(loaded.config.dtype)),
                ("attention", "native" if loaded.attention else resolve_backend_name(*kind)),
                *graph_report(loaded, config, backend),
                ("same tokens in any batch", batch_invariance(loaded, deterministic=config.deterministic)),
                *loaded.report,
                ("max_model_len", f"{max_model_len} ({_length_reason(config, loaded, max_model_len)})"),
                *(() if states is None else states.report()),
                *pool.report,
                ("seconds to load", f"{loaded_at - began:.2f}"),
                ("seconds to make the cache", f"{clock.now() - loaded_at:.2f}"),
            ),
        )

    @property
    def model(self) -> CausalLM:
        """The model, once the runner has started."""
        return self._started().loaded.model

    @property
    def kv_cache(self) -> list[PagedKV]:
        """The keys and values by layer index within a group, once the runner has started."""
        return self._started().kv

    def _started(self) -> StepExecutor:
        assert self._engine is not None, "the runner has not started, or has stopped"
        return self._engine

    def launch(self, plan: StepPlan) -> None:
        """Compute a step, and sample it at once unless a row waits for masks.

        Raises what the model raises, MemoryError where torch is out of memory, and TokenOutOfRange for an input id
        outside the vocabulary. The step is void then.
        """
        engine = self._engine
        assert engine is not None, "launch before start, or after stop"
        use_device(engine.loaded.device)  # this may be another thread than that of start()
        engine.populator.begin_step(int(plan.new_blocks[:, 3].max()) + 1 if len(plan.new_blocks) else 0)
        self._threads.begin_step()
        # Masks may come before their launch: then the step need not wait for them.
        masks = self._masks.pop(plan.step_id, None)
        waits = len(plan.masked_samples) > 0 and masks is None
        has_waiting = bool(self._results) and isinstance(self._results[-1], _WaitingStep)
        # The device samples in the order of its launches: a later step would read tokens that are not sampled yet.
        assert not (engine.is_asynchronous and has_waiting), "a launch while a step on the device waits for masks"
        try:
            with StepErrors(engine.loaded.device), torch.inference_mode():
                step = engine.forward(plan, waits=waits)
                self._results.append(_WaitingStep(plan, step) if waits else engine.sample(step, masks))
        finally:
            engine.populator.end_step()
        self._threads.end_step()

    def release_blocks(self, num_kept: int, moves: Sequence[tuple[int, int]] = ()) -> int:
        """Return the host memory of all but the first blocks to the system; returns bytes, 0 on a device."""
        if (engine := self._engine) is None:
            return 0
        if moves:
            engine.backend.copy_blocks(engine.kv, torch.tensor(moves, device=engine.loaded.device))
        return engine.populator.release(num_kept)

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load the adapter of a folder under a number, beside the steps; see LoadsAdapters.

        Raises ModelError, and ConfigError without the option enable_lora.
        """
        loaded = self._started().loaded
        model, shape, path = loaded.model, loaded.config, Path(folder).expanduser()
        if not isinstance(model, TakesAdapters):
            raise ConfigError("adapters need the option enable_lora", option="enable_lora")
        assert isinstance(shape, DecoderConfig), "adapters of a decoder of Chairlift's own"
        dtype = torch.float64 if shape.dtype == "float64" else torch.float32
        base = Path(self._config.model) if self._config.model else None
        targets = AdapterTargets(shape, model.adaptable, base_weights(base, shape, model.adaptable, dtype))
        read = read_adapter(path, targets)
        try:
            num_bytes = model.add_adapter(number, read.weights)
        except (MemoryError, RuntimeError) as error:
            raise ModelError(f"there is no memory for the adapter {folder}: {error}") from error
        ranks = [part.rank for part in read.weights.projections.values()]
        return AdapterInfo(read.digest, num_bytes, max(ranks, default=0))

    def drop_adapter(self, number: int) -> None:
        """Free an adapter; see LoadsAdapters."""
        if self._engine is not None and isinstance(self._engine.loaded.model, TakesAdapters):
            self._engine.loaded.model.remove_adapter(number)

    def renew_threads(self) -> None:
        """Start the native kernels' threads anew; torch starts others for each thread that calls it."""
        renew_pool_threads()

    def device_memory(self) -> tuple[int, int]:
        """Return the bytes of tensors on the device, and the bytes held for them; zeros on a CPU."""
        engine = self._engine
        if engine is None or engine.loaded.device.type != "cuda":
            return 0, 0
        device = engine.loaded.device
        return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)

    def supply_masks(self, step_id: int, masks: TokenMasks) -> None:
        """Store the token masks of some rows of a step that was not collected, launched or not.

        A step that was launched on a device is sampled at once; what that raises makes it void, as in launch.
        """
        engine, last = self._engine, self._results[-1] if self._results else None
        if engine is None or not engine.is_asynchronous or not isinstance(last, _WaitingStep):
            self._masks[step_id] = masks
            return
        assert last.plan.step_id == step_id, f"step {last.plan.step_id} waits for masks, not step {step_id}"
        self._results.pop()
        with StepErrors(engine.loaded.device), torch.inference_mode():
            self._results.append(engine.sample(last.step, masks))

    def collect(self) -> StepResult:
        """Return the oldest result that was not collected; sample the step if it waited for masks."""
        assert self._results, "collect without a launch"
        result, engine = self._results.popleft(), self._engine
        if isinstance(result, StepResult):
            return result
        assert engine is not None, "collect after stop"
        if isinstance(result, _WaitingStep):
            step_id = result.plan.step_id
            masks = self._masks.pop(step_id, None)
            assert masks is not None, f"step {step_id} waits for masks"
            self._masks = {later: kept for later, kept in self._masks.items() if later > step_id}  # of void steps
            with StepErrors(engine.loaded.device), torch.inference_mode():
                result = engine.sample(result.step, masks)
        return result if isinstance(result, StepResult) else self._read(result, engine)

    def _read(self, result: UnreadResult, engine: StepExecutor) -> StepResult:
        """Wait for a step of a device. If that raises, the steps that were launched after it are void."""
        try:
            with StepErrors(engine.loaded.device):
                return result.read()
        except BaseException:
            self._results.clear()
            self._masks.clear()
            raise

    def warmup(self) -> None:
        """Compute the steps of warmup_plans() with separate tables and sampler; they read block 0 and write nothing.

        The pages of the blocks that are used next are populated when it returns.
        """
        assert self._engine is not None, "warm-up before start, or after stop"
        use_device(self._engine.loaded.device)
        assert not self._results, "a warm-up while steps are in flight"
        config, engine = self._config, self._engine
        loaded, model = engine.loaded, engine.loaded.model
        num_rows, states = config.max_running_requests, None
        if engine.states is not None:  # sequences may be running, whose states stay
            num_rows = min(engine.states.num_slots, WARMUP_STATES)
            states = self._allocate_states(loaded, StateCacheSize(num_rows, 0, 0))
        apart = make_executor(loaded, config, engine.backend, engine.kv, engine.populator, states, writes=False)
        plans = warmup_plans(
            config.max_batch_tokens, num_rows, loaded.config.context_length(config.max_model_len),
            config.block_size, len(model.groups.windows), model.padded_size,
        )  # fmt: skip
        for plan in plans:
            run_step(apart, plan)
        engine.prepare()
        self._engine.populator.wait()

    def stop(self) -> None:
        """Free the model and its cache."""
        if self._engine is not None:
            self._engine.populator.stop()
            self._threads.close()
        was_on_cuda = self._engine is not None and self._engine.loaded.device.type == "cuda"
        self._engine = None
        # A reference here would keep the model's memory on the device.
        self._preloaded = None
        self._results.clear()
        self._masks.clear()
        if was_on_cuda:
            with suppress(RuntimeError):  # of a device that has failed
                torch.cuda.empty_cache()

    def _size(self, loaded: LoadedModel, backend: AttentionBackend) -> tuple[int, KVCacheSize, StateCacheSize | None]:
        """Return the tokens of the longest sequence, the size of the cache, and the states of a model with states."""
        max_model_len = loaded.config.context_length(self._config.max_model_len)
        config, shape, on_host = self._config, loaded.config, loaded.device.type != "cuda"
        profiled = None if on_host else profile_steps(loaded, config, backend, max_model_len)
        free = free_memory(loaded.device)
        if loaded.communicator is not None:
            shape, free = agree_on_sizes(loaded.communicator, shape, free, on_host=on_host)
        groups = loaded.model.groups
        largest, step = memory_shapes(config, shape, groups, max_model_len)
        states = plan_states(
            config, shape, free, (profiled or step).peak_bytes(), largest, shapes=loaded.model.state_shapes,
            on_host=on_host,
        )  # fmt: skip
        reserved = 0 if states is None else states.num_bytes

        def size(length: int) -> tuple[KVCacheShape, KVCacheSize]:
            pool, step = memory_shapes(config, shape, groups, length)
            return pool, size_kv_cache(
                pool, profiled or step, free, on_host=on_host, max_memory=config.max_memory,
                num_blocks=config.num_blocks, reserved=reserved,
            )  # fmt: skip

        if config.fits_length_to_cache:
            return *size_for_longest(size, groups.windows, max_model_len), states
        if config.num_blocks is not None and config.max_model_len is not None:
            pool, _ = memory_shapes(config, shape, groups, max_model_len)
            check_num_blocks(pool, groups.windows, config.num_blocks)
        return max_model_len, size(max_model_len)[1], states

    def _allocate_states(self, loaded: LoadedModel, size: StateCacheSize) -> StateCache:
        dtype = getattr(torch, str(loaded.config.dtype))
        try:
            return StateCache(
                loaded.model.state_shapes, size.num_slots, size.num_checkpoints, dtype, loaded.device
            )  # fmt: skip
        except (MemoryError, OSError, RuntimeError) as error:
            raise ConfigError(f"cannot allocate {size.num_slots} states: {error}", option="max_memory") from error

    def _allocate(self, loaded: LoadedModel, backend: AttentionBackend, pool: KVCacheSize) -> list[PagedKV]:
        config, groups = self._config, loaded.model.groups
        dtype = kv_cache_dtype(config.kv_cache_dtype, loaded.config.dtype)
        try:
            return allocate_kv(backend, groups, pool.num_blocks, config.block_size, dtype, loaded.device)
        except (MemoryError, OSError, RuntimeError) as error:
            raise ConfigError(f"cannot allocate {pool.num_blocks} blocks: {error}", option="num_blocks") from error


def _prefaulter(kv: list[PagedKV]) -> PagePrefaulter:
    """Return a started prefaulter of a cache; on a device it has nothing to do."""
    populator = PagePrefaulter(
        tensor for each in kv for tensor in (each.key, each.value) if tensor.device.type == "cpu"
    )  # fmt: skip
    populator.start()
    return populator


def _use_threads(loaded: LoadedModel) -> StepThreadCount:
    """Set torch's threads for this thread, and for threads that first use torch later.

    Returns the number of the threads that compute steps: those of the native kernels, if these run whole steps.
    """
    if loaded.torch_threads is not None:
        torch.set_num_threads(loaded.torch_threads)
    if loaded.attention is not None:
        return StepThreadCount(
            max_pool_threads(), apply=renew_pool_threads, measured_seconds=NATIVE_MEASURED_SECONDS,
            client_seconds=parent_cpu_seconds,
        )  # fmt: skip
    return StepThreadCount(torch.get_num_threads(), apply=torch.set_num_threads)


def _length_reason(config: RunnerConfig, loaded: LoadedModel, max_model_len: int) -> str:
    """Return what the length of the longest sequence follows from."""
    limit = f"the model's limit is {loaded.config.max_context}"
    is_lowered = config.fits_length_to_cache and max_model_len < loaded.config.max_context
    return f"as many as the KV cache holds; {limit}" if is_lowered else limit


def build(payload: bytes) -> Runner:
    """Build a runner from the bytes of a RunnerConfig: the factory "chairlift.model.runner.torch_runner:build"."""
    return TorchRunner(RunnerConfig.decode(payload))


def _no_drafts_reason(engine: StepExecutor, *, deterministic: bool) -> str:
    """Return why sequences get no drafts, "" where these change no token."""
    if engine.is_asynchronous:
        return "a CUDA device samples each sequence once in a step"
    if not is_batch_invariant(engine.loaded, deterministic=deterministic):
        return "rounding depends on the batch, so that drafts could change tokens"
    if any(shape.partial_chunk() is not None for shape in engine.loaded.model.state_shapes):
        return "layers keep states of whole chunks only, so that drafts could not be taken back"
    return ""


def _attention_kind(config: RunnerConfig, loaded: LoadedModel) -> tuple[str, str, str]:
    """Return what decides the attention backend: the option, the device and the dtype."""
    return config.attention_backend, str(loaded.device), str(loaded.config.dtype)


def _shown_model(folder: str) -> str:
    """Return what a user named: the model folder, or the GGUF file that it was made of."""
    return str(gguf_file_of(Path(folder)) or folder) if folder else "tiny random model"
