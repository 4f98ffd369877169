"""EngineArgs: the options of an LLM or AsyncLLM as one object."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chairlift.llm.vllm_compat.vllm_options import resolve_options


class EngineArgs(SimpleNamespace):
    """The keyword arguments of LLM and AsyncLLM, checked by name; `LLM(**vars(args))` uses them."""

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        """Store the options. Raises ConfigError, UnknownOption as LLM does."""
        resolve_options(model, options)
        super().__init__(model=model, **options)


AsyncEngineArgs = EngineArgs
