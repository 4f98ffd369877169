"""Chairlift: a server for large language models with continuous batching.

    from chairlift import LLM, SamplingParams

Importing this package does not import torch; the names below are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chairlift.core.sampling import SamplingParams as SamplingParams
    from chairlift.core.sampling_names import RequestOutputKind as RequestOutputKind
    from chairlift.core.structured_output import StructuredOutput as StructuredOutput
    from chairlift.core.structured_output import StructuredOutputsParams as StructuredOutputsParams
    from chairlift.llm.async_llm import AsyncLLM as AsyncLLM
    from chairlift.llm.compat.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from chairlift.llm.compat.engine_args import EngineArgs as EngineArgs
    from chairlift.llm.continuous_batching.attach import attach as attach
    from chairlift.llm.continuous_batching.batch_processor import ContinuousBatchProcessor as ContinuousBatchProcessor
    from chairlift.llm.continuous_batching.cache import PagedAttentionCache as PagedAttentionCache
    from chairlift.llm.continuous_batching.config import ContinuousBatchingConfig as ContinuousBatchingConfig
    from chairlift.llm.continuous_batching.debugger import ContinuousBatchingDebugger as ContinuousBatchingDebugger
    from chairlift.llm.continuous_batching.generation_output import GenerationOutput as GenerationOutput
    from chairlift.llm.continuous_batching.manager import ContinuousBatchingManager as ContinuousBatchingManager
    from chairlift.llm.continuous_batching.request_state import RequestState as RequestState
    from chairlift.llm.continuous_batching.request_status import RequestStatus as RequestStatus
    from chairlift.llm.continuous_batching.schedulers import FIFOScheduler as FIFOScheduler
    from chairlift.llm.continuous_batching.schedulers import PrefillFirstScheduler as PrefillFirstScheduler
    from chairlift.llm.llm import LLM as LLM
    from chairlift.llm.outputs import CompletionOutput as CompletionOutput
    from chairlift.llm.outputs import Logprob as Logprob
    from chairlift.llm.outputs import RequestOutput as RequestOutput

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
    "attach": "chairlift.llm.continuous_batching.attach",
    "ContinuousBatchingConfig": "chairlift.llm.continuous_batching.config",
    "ContinuousBatchingManager": "chairlift.llm.continuous_batching.manager",
    "GenerationOutput": "chairlift.llm.continuous_batching.generation_output",
    "ContinuousBatchProcessor": "chairlift.llm.continuous_batching.batch_processor",
    "ContinuousBatchingDebugger": "chairlift.llm.continuous_batching.debugger",
    "FIFOScheduler": "chairlift.llm.continuous_batching.schedulers",
    "PagedAttentionCache": "chairlift.llm.continuous_batching.cache",
    "PrefillFirstScheduler": "chairlift.llm.continuous_batching.schedulers",
    "RequestState": "chairlift.llm.continuous_batching.request_state",
    "RequestStatus": "chairlift.llm.continuous_batching.request_status",
    "LLM": "chairlift.llm.llm",
    "AsyncEngineArgs": "chairlift.llm.compat.engine_args",
    "AsyncLLM": "chairlift.llm.async_llm",
    "CompletionOutput": "chairlift.llm.outputs",
    "EngineArgs": "chairlift.llm.compat.engine_args",
    "Logprob": "chairlift.llm.outputs",
    "RequestOutput": "chairlift.llm.outputs",
    "RequestOutputKind": "chairlift.core.sampling_names",
    "SamplingParams": "chairlift.core.sampling",
    "StructuredOutput": "chairlift.core.structured_output",
    "StructuredOutputsParams": "chairlift.core.structured_output",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'chairlift' has no attribute {name!r}")
