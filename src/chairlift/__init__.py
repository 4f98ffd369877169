"""Chairlift: a server for large language models with continuous batching.

    from chairlift import LLM, SamplingParams

Importing this package does not import torch; the names below are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chairlift.core.request_output_kind import RequestOutputKind as RequestOutputKind
    from chairlift.core.sampling_params import SamplingParams as SamplingParams
    from chairlift.core.structured_output import StructuredOutput as StructuredOutput
    from chairlift.core.vllm_structured_outputs_params import StructuredOutputsParams as StructuredOutputsParams
    from chairlift.llm.async_llm import AsyncLLM as AsyncLLM
    from chairlift.llm.llm import LLM as LLM
    from chairlift.llm.outputs import CompletionOutput as CompletionOutput
    from chairlift.llm.outputs import Logprob as Logprob
    from chairlift.llm.outputs import RequestOutput as RequestOutput
    from chairlift.llm.transformers_compat.attach import attach as attach
    from chairlift.llm.transformers_compat.cache import PagedAttentionCache as PagedAttentionCache
    from chairlift.llm.transformers_compat.continuous_batch_processor import (
        ContinuousBatchProcessor as ContinuousBatchProcessor,
    )
    from chairlift.llm.transformers_compat.continuous_batching_config import (
        ContinuousBatchingConfig as ContinuousBatchingConfig,
    )
    from chairlift.llm.transformers_compat.debugger import ContinuousBatchingDebugger as ContinuousBatchingDebugger
    from chairlift.llm.transformers_compat.generation_output import GenerationOutput as GenerationOutput
    from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager as ContinuousBatchingManager
    from chairlift.llm.transformers_compat.request_state import RequestState as RequestState
    from chairlift.llm.transformers_compat.request_status import RequestStatus as RequestStatus
    from chairlift.llm.transformers_compat.schedulers import FIFOScheduler as FIFOScheduler
    from chairlift.llm.transformers_compat.schedulers import PrefillFirstScheduler as PrefillFirstScheduler
    from chairlift.llm.vllm_compat.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from chairlift.llm.vllm_compat.engine_args import EngineArgs as EngineArgs
    from chairlift.lora.request import LoRARequest as LoRARequest

from chairlift.core.version import __version__ as __version__

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "CompletionOutput",
    "ContinuousBatchProcessor",
    "ContinuousBatchingConfig",
    "ContinuousBatchingDebugger",
    "ContinuousBatchingManager",
    "EngineArgs",
    "FIFOScheduler",
    "GenerationOutput",
    "LoRARequest",
    "Logprob",
    "PagedAttentionCache",
    "PrefillFirstScheduler",
    "RequestOutput",
    "RequestOutputKind",
    "RequestState",
    "RequestStatus",
    "SamplingParams",
    "StructuredOutput",
    "StructuredOutputsParams",
    "__version__",
    "attach",
]  # fmt: skip

_MODULES = {
    "attach": "chairlift.llm.transformers_compat.attach",
    "ContinuousBatchingConfig": "chairlift.llm.transformers_compat.continuous_batching_config",
    "ContinuousBatchingManager": "chairlift.llm.transformers_compat.manager",
    "GenerationOutput": "chairlift.llm.transformers_compat.generation_output",
    "ContinuousBatchProcessor": "chairlift.llm.transformers_compat.continuous_batch_processor",
    "ContinuousBatchingDebugger": "chairlift.llm.transformers_compat.debugger",
    "FIFOScheduler": "chairlift.llm.transformers_compat.schedulers",
    "PagedAttentionCache": "chairlift.llm.transformers_compat.cache",
    "PrefillFirstScheduler": "chairlift.llm.transformers_compat.schedulers",
    "RequestState": "chairlift.llm.transformers_compat.request_state",
    "RequestStatus": "chairlift.llm.transformers_compat.request_status",
    "LLM": "chairlift.llm.llm",
    "AsyncEngineArgs": "chairlift.llm.vllm_compat.engine_args",
    "AsyncLLM": "chairlift.llm.async_llm",
    "CompletionOutput": "chairlift.llm.outputs",
    "EngineArgs": "chairlift.llm.vllm_compat.engine_args",
    "LoRARequest": "chairlift.lora.request",
    "Logprob": "chairlift.llm.outputs",
    "RequestOutput": "chairlift.llm.outputs",
    "RequestOutputKind": "chairlift.core.request_output_kind",
    "SamplingParams": "chairlift.core.sampling_params",
    "StructuredOutput": "chairlift.core.structured_output",
    "StructuredOutputsParams": "chairlift.core.vllm_structured_outputs_params",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'chairlift' has no attribute {name!r}")
