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
    from chairlift.engine.transformers_names import FIFOScheduler as FIFOScheduler
    from chairlift.engine.transformers_names import PagedAttentionCache as PagedAttentionCache
    from chairlift.engine.transformers_names import PrefillFirstScheduler as PrefillFirstScheduler
    from chairlift.engine.transformers_names import RequestStatus as RequestStatus
    from chairlift.llm.async_llm import AsyncLLM as AsyncLLM
    from chairlift.llm.compat.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from chairlift.llm.compat.engine_args import EngineArgs as EngineArgs
    from chairlift.llm.llm import LLM as LLM
    from chairlift.llm.outputs import CompletionOutput as CompletionOutput
    from chairlift.llm.outputs import Logprob as Logprob
    from chairlift.llm.outputs import RequestOutput as RequestOutput

from chairlift.core.version import __version__ as __version__

__all__ = [
    "LLM", "AsyncEngineArgs", "AsyncLLM", "CompletionOutput", "EngineArgs", "FIFOScheduler", "Logprob",
    "PagedAttentionCache", "PrefillFirstScheduler", "RequestOutput", "RequestOutputKind", "RequestStatus",
    "SamplingParams", "StructuredOutput", "StructuredOutputsParams", "__version__",
]  # fmt: skip

_MODULES = {
    "LLM": "chairlift.llm.llm",
    "AsyncEngineArgs": "chairlift.llm.compat.engine_args",
    "AsyncLLM": "chairlift.llm.async_llm",
    "CompletionOutput": "chairlift.llm.outputs",
    "EngineArgs": "chairlift.llm.compat.engine_args",
    "FIFOScheduler": "chairlift.engine.transformers_names",
    "PagedAttentionCache": "chairlift.engine.transformers_names",
    "PrefillFirstScheduler": "chairlift.engine.transformers_names",
    "Logprob": "chairlift.llm.outputs",
    "RequestOutput": "chairlift.llm.outputs",
    "RequestOutputKind": "chairlift.core.sampling_names",
    "RequestStatus": "chairlift.engine.transformers_names",
    "SamplingParams": "chairlift.core.sampling",
    "StructuredOutput": "chairlift.core.structured_output",
    "StructuredOutputsParams": "chairlift.core.structured_output",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'chairlift' has no attribute {name!r}")
