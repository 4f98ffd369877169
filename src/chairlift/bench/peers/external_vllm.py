"""vLLM, on a CPU or a GPU, by its offline engine; it makes no text of its tokens. Runs in vLLM's own Python."""

import importlib
import os
import time
from typing import Any

MAX_NUM_SEQS = 64
KV_GIB = 4


class Engine:
    """vLLM's LLM, driven as its generate() does it, with a clock on every step."""

    def __init__(self, llm: Any, vllm: Any) -> None:
        self._llm, self._vllm = llm, vllm

    def run(self, requests: list[dict[str, Any]]) -> list[tuple[list[float], int]]:
        """See outside.measured()."""
        self._llm.reset_prefix_cache()
        engine = self._llm.llm_engine
        for number, request in enumerate(requests):
            params = self._vllm.SamplingParams(
                temperature=0, max_tokens=request["tokens"], ignore_eos=True, detokenize=False
            )
            engine.add_request(str(number), {"prompt_token_ids": request["prompt"]}, params)
        seen: list[tuple[list[float], int]] = [([], 0) for _ in requests]
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                number = int(output.request_id)
                stamps, before = seen[number]
                count = len(output.outputs[0].token_ids)
                if count > before:
                    stamps.append(now)
                    seen[number] = (stamps, count)
        return seen

    def about(self) -> dict[str, Any]:
        """See outside.measured()."""
        config = self._llm.llm_engine.vllm_config
        return {
            "version": self._vllm.__version__,
            "dtype": str(config.model_config.dtype),
            "quantization": config.model_config.quantization,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        }

    def close(self) -> None:
        """See outside.measured()."""
        shutdown = getattr(self._llm.llm_engine.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()


def opened(task: dict[str, Any]) -> Engine:
    """Load the model."""
    settings = task["settings"]
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = settings.get("kv_gib", str(KV_GIB))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, task["cpus"])))
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    vllm = importlib.import_module("vllm")
    more = {name: settings[name] for name in ("quantization",) if name in settings}
    if "max_num_batched_tokens" in settings:
        more["max_num_batched_tokens"] = int(settings["max_num_batched_tokens"])
    llm = vllm.LLM(
        settings.get("model", task["model"]), dtype=task["dtype"], max_model_len=task["longest"],
        max_num_seqs=int(settings.get("max_num_seqs", MAX_NUM_SEQS)), enable_prefix_caching=True, **more,
    )  # fmt: skip
    return Engine(llm, vllm)
