"""Any decoder of transformers that uses its attention interface, on the paged KV cache of this engine.

    load_folder   a model folder, with a copy of the weights
    load_module   a model that is loaded already; its parameters are shared, and the module itself does not change

Windows, soft caps and sinks are taken from the calls of the layers. A model that cannot run is refused at load.
"""

import contextlib
import copy
import itertools
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from chairlift.core.errors import ChairliftError, ConfigError, UnsupportedArchitecture
from chairlift.model.attention.base import AttentionBackend
from chairlift.model.attention.registry import make_backend
from chairlift.model.backends.batch_invariance_report import refuse_deterministic
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import UNQUANTIZED, RunnerConfig, cache_name
from chairlift.model.config.runner_option_checks import refuse_float8
from chairlift.model.config.transformers_config import TransformersConfig, parse_transformers_config
from chairlift.model.config.weight_checks import check_weights
from chairlift.model.device.dtypes import dtype_name, torch_dtype
from chairlift.model.device.triton_package import check_triton
from chairlift.model.transformers.attention import IMPLEMENTATION, MEASURING, PagedAttention, register, select_attention
from chairlift.model.transformers.base_model_runner import BaseModelRunner, base_states, takes_positions
from chairlift.model.transformers.causal_lm import TransformersCausalLM, base_of
from chairlift.model.transformers.eager_comparison import EagerStates, check_against_eager, eager_states
from chairlift.model.transformers.long_context_checks import (
    check_block_sparse,
    check_cache_reads,
    check_cache_windows,
    check_far_tokens,
)
from chairlift.model.transformers.long_rope import use_long_factors
from chairlift.model.transformers.module_kernels import ModuleKernels, choose_kernels
from chairlift.model.transformers.pretrained import load_pretrained, make_without_weights, weights_dtype
from chairlift.model.transformers.sequence_cache_runner import SequenceCacheRunner
from chairlift.model.transformers.unsupported_layers import is_not_causal, unsupported
from chairlift.model.weights.checkpoint_fingerprint import fingerprint

log = logging.getLogger(__name__)

_module_numbers = itertools.count()


def load_folder(folder: Path, shape: TransformersConfig, config: RunnerConfig, device: torch.device) -> LoadedModel:
    """Load a model folder with transformers.

    Raises ModelError that names the file or the tensor, and UnsupportedArchitecture with the reason.
    """
    refuse_deterministic(config, shape.architecture)
    refuse_float8(config, shape.architecture)
    check_weights(folder)
    dtype = weights_dtype(folder, shape, config.dtype)
    kernels = choose_kernels(config, dtype, device)
    factors = " long" if uses_long_factors(shape, config) else ""

    def model_id(computed: str) -> str:
        cache = cache_name(config, dtype, computed)
        quantization = "none" if config.quantization in UNQUANTIZED else config.quantization
        return fingerprint(folder, f"{dtype} {quantization} transformers{factors}{cache}")

    computed = kernels.compute_dtype(dtype)
    shape = replace(shape, dtype=computed)
    model = load_pretrained(folder, shape, config, device)
    if computed != dtype:
        _round_parameters(model, torch_dtype(dtype))
    try:
        loaded = _prepare(model, shape, config, device, model_id(computed), kernels)
        return replace(loaded, weights_dtype=dtype)
    except UnsupportedArchitecture as error:
        if kernels.is_plain or config.kernels == "native" or config.quantization not in UNQUANTIZED:
            raise
        log.info("without faster modules, because: %s", error.message)
    del model, kernels
    plain, shape = ModuleKernels(), replace(shape, dtype=dtype)
    return _prepare(load_pretrained(folder, shape, config, device), shape, config, device, model_id(dtype), plain)


def _round_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Round parameters to a dtype, but those that transformers keeps in float32."""
    kept = {*(getattr(model, "_keep_in_fp32_modules", None) or ())}
    kept |= {*(getattr(model, "_keep_in_fp32_modules_strict", None) or ())}
    for name, parameter in model.named_parameters():
        if not any(re.search(rf"(^|\.){part}(\.|$)", name) for part in kept):
            parameter.data.copy_(parameter.data.to(dtype))


def load_module(module: nn.Module, config: RunnerConfig) -> LoadedModel:
    """Prepare a loaded model of transformers, in its own dtype and on its own device.

    The parameters are shared: a change of them in place is seen by the next step.
    Raises ConfigError for an option or device that cannot be used, and UnsupportedArchitecture with the reason.
    """
    model: Any = module
    shape = parse_transformers_config(_config_dict(model))
    refuse_deterministic(config, shape.architecture)
    refuse_float8(config, shape.architecture)
    check_triton(str(model.device))
    own = copy.deepcopy(model, _shared_objects(model)).eval()
    name = f"{type(model).__name__}-{next(_module_numbers)}"
    return _prepare(own, replace(shape, dtype=dtype_name(model.dtype)), config, model.device, name, ModuleKernels())


def _shared_objects(model: nn.Module) -> dict[int, Any]:
    """Return the objects by id that a copy of a model shares: parameters, and what users have set and cannot be copied.

    A thread or a lock is such an attribute. A bound method of the model becomes one of its copy, so that the copy has
    no reference to the model.
    """
    modules = {id(module) for module in model.modules()}
    shared: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    copied = dict(shared)  # so that the config, which every module has, is copied once
    for module in model.modules():
        for name, value in vars(module).items():
            if name in _MODULE_STATE or isinstance(value, _PLAIN):
                continue
            if isinstance(value, MethodType) and id(value.__self__) in modules:
                continue
            try:
                if not isinstance(value, MethodType):
                    copy.deepcopy(value, copied)
                    continue
            except Exception as error:
                log.debug("the attribute %s of %s is shared: %s", name, type(module).__name__, error)
            shared[id(value)] = value
    return shared


_MODULE_STATE = frozenset(vars(nn.Module()))
_PLAIN = (int, float, str, bytes, type(None), torch.Tensor, nn.Module, torch.dtype, torch.device)


def _config_dict(model: Any) -> dict[str, Any]:
    content: dict[str, Any] = model.config.to_dict()
    return content | {"architectures": [type(model).__name__]}


def _prepare(
    model: Any, shape: TransformersConfig, config: RunnerConfig, device: torch.device, model_id: str,
    kernels: ModuleKernels,
) -> LoadedModel:  # fmt: skip
    """Find out how the layers run, check that they compute what transformers computes, and return the model.

    Raises UnsupportedArchitecture with the reason.
    """
    if model.dtype == torch.float64:
        _use_eager_experts(model)
    length = shape.context_length(config.max_model_len)
    if uses_long_factors(shape, config) and not use_long_factors(model, length):
        raise ConfigError(
            f"the RoPE of {shape.architecture} has no factors for more than {shape.original_length} tokens",
            option="max_model_len",
        )
    with _refusing(shape):
        check_block_sparse(base_of(model), model.config, length)
        eager = eager_states(model)
        kernels.replace_in(model, lambda: _run_two_tokens(model))
        if config.quantization not in UNQUANTIZED:
            eager = eager_states(model, eager.ids)  # rounded weights compute other states
    paged = PagedAttention()
    try:
        with _refusing(shape):
            _measure(model, paged, shape.num_layers)
            check_far_tokens(base_of(model), paged, length)
            check_cache_windows(model.config, paged.calls, length)
            runner: BaseModelRunner = paged
            attention = kernels.attention(runner.head_dim, config.block_size)
            select_attention(model, IMPLEMENTATION)
            causal_lm = _checked(model, eager, runner, attention, config, kernels)
            select_attention(model, IMPLEMENTATION)
    except UnsupportedArchitecture as error:
        if is_not_causal(error):
            raise
        log.info("%s", error.message)
        with _refusing(shape, error):
            check_cache_windows(model.config, paged.calls, length)
            select_attention(model, "eager")
            runner, attention = SequenceCacheRunner(base_of(model), shape.num_layers), None
            causal_lm = _checked(model, eager, runner, attention, config, kernels)
    shape = replace(
        shape,
        vocab_size=causal_lm.vocab_size,
        num_kv_heads=runner.num_kv_heads,
        head_dim=runner.head_dim,
        layer_windows=runner.windows,
    )
    report = (("implementation", f"transformers {runner.report}"), *kernels.report())
    return LoadedModel(
        causal_lm, shape, device, model_id, attention, kernels.chunk_tokens, kernels.cpus, report,
        kernels.sampling_ops(), kernels.torch_threads,
    )  # fmt: skip


def uses_long_factors(shape: TransformersConfig, config: RunnerConfig) -> bool:
    """Return whether all sequences have the long factors of RoPE "longrope", because max_model_len may need them."""
    return shape.original_length is not None and shape.context_length(config.max_model_len) > shape.original_length


def measure_layers(folder: Path, shape: TransformersConfig) -> BaseModelRunner | None:
    """Return how the layers of a folder would run, without its weights; None if only a loaded model can tell.

    Raises ModelError, and UnsupportedArchitecture with the reason.
    """
    first: UnsupportedArchitecture | None = None
    try:
        try:
            with torch.device("meta"):
                model = make_without_weights(folder, shape.architecture)
            return _measured(model, shape.num_layers)
        except UnsupportedArchitecture as error:
            if is_not_causal(error):
                raise
            first = error
        except (NotImplementedError, RuntimeError):  # layers may make masks on the CPU
            first = None
        return _measured_on_cpu(folder, shape, first)
    except ChairliftError:
        raise
    # A model may do something that needs numbers, such as choosing experts.
    except Exception as error:
        log.debug("the layers cannot be measured without weights: %s", error)
        return None


def _measured_on_cpu(folder: Path, shape: TransformersConfig, first: UnsupportedArchitecture | None) -> BaseModelRunner:
    """Measure layers without weights on the CPU; `first` is the error of paged attention where it is known."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # imports sympy, for 1.5 s

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = make_without_weights(folder, shape.architecture)
        if first is None:
            try:
                return _measured(model, shape.num_layers)
            except UnsupportedArchitecture as error:
                first = error
        select_attention(model, "eager")
        try:
            return SequenceCacheRunner(base_of(model), shape.num_layers)
        except UnsupportedArchitecture as error:
            raise _refusal(shape, str(error.details["reason"]), first) from error


def _checked(
    model: Any, eager: EagerStates, runner: BaseModelRunner, attention: Callable[[], AttentionBackend] | None,
    config: RunnerConfig, kernels: ModuleKernels,
) -> TransformersCausalLM:  # fmt: skip
    causal_lm = TransformersCausalLM(model, runner, kernels)
    kind = (config.attention_backend, str(model.device), str(model.dtype).removeprefix("torch."))
    backend = make_backend(*kind) if attention is None else attention()
    # Triton runs its kernels on the current device; on a CPU the context does nothing.
    with torch.cuda.device_of(eager.ids[0]):  # type: ignore[no-untyped-call]
        rounds_rows = config.quantization not in UNQUANTIZED
        check_against_eager(causal_lm, eager, backend, config.block_size, rounds_rows=rounds_rows)
    return causal_lm


@contextlib.contextmanager
def _refusing(shape: TransformersConfig, first: UnsupportedArchitecture | None = None) -> Iterator[None]:
    """Name the architecture in the error of a model that does not fit, and the reason of the first way to run it.

    The modules of such a model may raise any exception; it becomes UnsupportedArchitecture.
    """
    try:
        yield
    except UnsupportedArchitecture as error:
        if is_not_causal(error):
            raise
        raise _refusal(shape, str(error.details.get("reason", error.message)), first) from error
    except ChairliftError:
        raise
    except Exception as error:
        raise _refusal(shape, f"{type(error).__name__}: {error}", first) from error


def _refusal(shape: TransformersConfig, reason: str, first: UnsupportedArchitecture | None) -> UnsupportedArchitecture:
    where, own = "", reason if first is None else str(first.details.get("reason", first.message))
    if own != reason:
        where, reason = f". One sequence after another: {reason}", own
    return UnsupportedArchitecture(
        f"{shape.architecture} cannot run on a paged KV cache: {reason}{where}", reason=reason,
        remedy="use a model whose layers all have causal attention",
    )  # fmt: skip


def _measured(model: Any, num_layers: int) -> PagedAttention:
    """Return the attention of the layers of a model without weights, as _measure records it."""
    attention = PagedAttention()
    _measure(model, attention, num_layers)
    check_cache_reads(base_of(model), attention)
    return attention


def _measure(model: Any, attention: PagedAttention, num_layers: int) -> None:
    """Record what each layer asks of its attention and decide where its keys and values are."""
    if not takes_positions(base_of(model)):
        raise unsupported("its modules do not take the positions of tokens")
    register()
    attention.attach(model)
    select_attention(model, MEASURING)
    attention.state_width = _run_two_tokens(model).shape[1]
    attention.assign_places(num_layers)


def _run_two_tokens(model: Any) -> Tensor:
    """Return the hidden states [2, H] of two tokens."""
    ids = torch.zeros(2, dtype=torch.int64, device=model.device)
    options: dict[str, Any] = {}
    if model.device.type == "meta":
        options["attention_mask"] = torch.ones_like(ids)[None]  # without one, transformers reads the positions
    with torch.inference_mode():
        return base_states(base_of(model), ids, torch.arange(2, device=model.device), use_cache=False, **options)


def _use_eager_experts(model: nn.Module) -> None:
    """Compute experts one after another: torch's grouped products have no float64."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_experts_implementation_internal"):
            config._experts_implementation_internal = "eager"
