"""make_executor: what computes the steps of a runner: ModelExecutor on the host, DeviceExecutor on a CUDA device."""

from typing import TYPE_CHECKING, Any, Protocol

import torch

from chairlift.core.errors import ConfigError
from chairlift.engine.step_plan import StepPlan, TokenMasks
from chairlift.engine.step_result import StepResult
from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.config.attention_backend_names import TRITON_DTYPES
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.transformers_config import TransformersConfig
from chairlift.model.device.device_stream import CudaStream, DeviceStream
from chairlift.model.device.page_prefault import PagePrefaulter
from chairlift.model.device.triton_package import can_use_triton
from chairlift.model.layers.causal_lm_protocol import TakesAdapters, TakesPlans
from chairlift.model.runner.input_batch_choice import make_input_batch
from chairlift.model.runner.model_executor import ModelExecutor
from chairlift.model.runner.prompt_pooling import PromptPooling
from chairlift.model.sampling.custom_processors import import_factories
from chairlift.model.sampling.prompt_logprobs import PromptLogprobs
from chairlift.model.sampling.sampler import Sampler

if TYPE_CHECKING:
    from chairlift.model.runner.device_executor import DeviceExecutor
    from chairlift.model.runner.device_input_batch import DeviceInputBatch


class UnreadResult(Protocol):
    """The result of a step that the device may still compute."""

    def read(self) -> StepResult:
        """Wait for the device, and return the result."""
        ...


class StepExecutor(Protocol):
    """Computes and samples steps with a loaded model and its cache.

    Attributes:
        is_asynchronous: whether forward and sample may return before the step is done. The masks of a step must then
            be supplied before the next step is launched.
        loaded, backend, kv, populator: the parts that it computes with.
        states: of a model with layers that keep some.
    """

    is_asynchronous: bool
    loaded: LoadedModel
    backend: AttentionBackend
    kv: list[PagedKV]
    populator: PagePrefaulter
    states: StateCache | None

    def forward(self, plan: StepPlan, *, waits: bool) -> Any:
        """Apply a plan and run the model, up to the work that is deferred to sampling; `waits` if masks are missing."""
        ...

    def sample(self, step: Any, masks: TokenMasks | None) -> StepResult | UnreadResult:
        """Sample the rows of a step that forward returned."""
        ...

    def prepare(self) -> None:
        """Do what would make the first steps slow. No step may be in flight."""
        ...


def make_executor(
    loaded: LoadedModel, config: RunnerConfig, backend: AttentionBackend, kv: list[PagedKV],
    populator: PagePrefaulter, states: StateCache | None = None, *, writes: bool = True,
) -> StepExecutor:  # fmt: skip
    """Make what computes the steps of a loaded model.

    Without `writes` no token is written to the cache, as in a warm-up. Raises ConfigError if use_cuda_graph is "on" and
    steps cannot be graphs.
    """
    model, slots = loaded.model, config.max_running_requests
    factories = import_factories(config.logits_processor_factories) if writes else {}
    sampler = Sampler(slots, model.vocab_size, factories, loaded.sampling_ops)
    prompt_logprobs = PromptLogprobs(slots, model.vocab_size, loaded.sampling_ops)
    stream = device_stream(loaded)
    if (obstacle := graph_obstacle(loaded, backend, stream)) and config.use_cuda_graph == "on":
        raise ConfigError(f"use_cuda_graph is on, but {obstacle}; set it to auto or off", option="use_cuda_graph")
    tables = make_input_batch(loaded, config, stream, writes=writes)
    if stream is None:
        plan_model = model if isinstance(model, TakesPlans) else None
        adapted_model = model if isinstance(model, TakesAdapters) else None
        return ModelExecutor(
            loaded, backend, kv, tables, sampler, prompt_logprobs, PromptPooling(), populator, plan_model,
            adapted_model, states,
        )  # fmt: skip
    from chairlift.model.runner.device_executor import DeviceExecutor
    from chairlift.model.runner.device_input_batch import DeviceInputBatch

    assert isinstance(tables, DeviceInputBatch), "a stream has its inputs on the device"
    executor = DeviceExecutor(
        loaded, backend, kv, populator, tables=tables, stream=stream, host_sampler=sampler,
        prompt_logprobs=prompt_logprobs, max_slots=slots, states=states,
    )  # fmt: skip
    # Graphs belong to one executor: that of a warm-up, which does not write, would capture them in vain.
    if writes and not (obstacle or _unwanted_graphs(loaded, config)):
        _use_graphs(executor, tables, stream, config, loaded.config.context_length(config.max_model_len))
    return executor


def run_step(executor: StepExecutor, plan: StepPlan) -> StepResult:
    """Compute and sample a step without masks, and wait for its result."""
    with torch.inference_mode():
        result = executor.sample(executor.forward(plan, waits=False), None)
    return result if isinstance(result, StepResult) else result.read()


def device_stream(loaded: LoadedModel) -> DeviceStream | None:
    """Return the stream of a device whose steps run without the host, or None: on CUDA with triton and its dtypes.

    The host prepares the steps of a model with adapters.
    """
    if isinstance(loaded.model, TakesAdapters):
        return None
    can_sample = can_use_triton(loaded.device) and str(loaded.config.dtype) in TRITON_DTYPES
    return CudaStream() if can_sample else None


def graph_obstacle(loaded: LoadedModel, backend: AttentionBackend, stream: DeviceStream | None) -> str:
    """Return why a step of the model cannot be a CUDA graph; "" if it can."""
    if stream is None and loaded.device.type != "cuda":
        return f"the device is {loaded.device}"
    if stream is None:
        return f"steps in {loaded.config.dtype} without triton's kernels wait for the host"
    if isinstance(loaded.config, TransformersConfig):
        return "the model runs modules of transformers, which may wait for the host"
    if loaded.model.state_shapes:
        return "the host prepares the steps of layers that keep a state"
    if not backend.supports_cuda_graph:
        return f"the attention backend {type(backend).__name__} reads lengths on the host"
    return ""


def graph_report(loaded: LoadedModel, config: RunnerConfig, backend: AttentionBackend) -> tuple[tuple[str, str], ...]:
    """Return the line of the startup report about CUDA graphs, on a CUDA device; on another device there is none."""
    if loaded.device.type != "cuda":
        return ()
    reason = _reason_without_graphs(loaded, config, backend)
    return (("CUDA graphs", f"off: {reason}" if reason else "on, for decode steps"),)


def has_graphs(loaded: LoadedModel, config: RunnerConfig, backend: AttentionBackend) -> bool:
    """Return whether decode steps of the model are CUDA graphs."""
    return not _reason_without_graphs(loaded, config, backend)


def _reason_without_graphs(loaded: LoadedModel, config: RunnerConfig, backend: AttentionBackend) -> str:
    """Return why decode steps are not CUDA graphs; "" if they are."""
    return graph_obstacle(loaded, backend, device_stream(loaded)) or _unwanted_graphs(loaded, config)


def _unwanted_graphs(loaded: LoadedModel, config: RunnerConfig) -> str:
    """Return why steps are not graphs though they could be; "" if they are."""
    if config.use_cuda_graph == "off":
        return "use_cuda_graph is off"
    if config.use_cuda_graph == "auto" and loaded.communicator is not None:  # the capture of collectives was not tried
        return "several ranks have them only if use_cuda_graph is on"
    return ""


def _use_graphs(
    executor: "DeviceExecutor", tables: "DeviceInputBatch", stream: DeviceStream, config: RunnerConfig,
    max_model_len: int,
) -> None:  # fmt: skip
    """Let an executor use graphs, and capture the smallest one to see whether that works."""
    from chairlift.model.runner.decode_graphs import DecodeGraphs

    graphs = executor.use_graphs(
        lambda compute: DecodeGraphs(
            compute, tables, stream, max_rows=min(config.max_running_requests, config.max_batch_tokens),
            max_model_len=max_model_len, block_size=config.block_size, device=executor.loaded.device,
            is_required=config.use_cuda_graph == "on", is_sharded=executor.loaded.communicator is not None,
        )
    )  # fmt: skip
    try:
        graphs.capture_smallest()
    except RuntimeError as error:
        raise ConfigError(
            f"use_cuda_graph is on, but a step cannot be captured: {error}; set it to auto or off",
            option="use_cuda_graph",
        ) from error
