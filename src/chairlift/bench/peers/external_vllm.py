"""VLLMEngine: vLLM's offline engine on a CPU or a GPU, without detokenization; runs in vLLM's own Python."""

import importlib
import os
import time
from typing import Any

MAX_NUM_SEQS = 64
KV_GIB = 4


class VLLMEngine:
    """Runs vLLM's LLM step by step, as its generate() does, to time each step."""

    def __init__(self, llm: Any, vllm: Any) -> None:
        self._llm, self._vllm = llm, vllm

    def run(self, requests: list[dict[str, Any]]) -> list[tuple[list[float], int]]:
        """See external_main.measure_engine()."""
        self._llm.reset_prefix_cache()
        engine = self._llm.llm_engine
        for number, request in enumerate(requests):
            params = self._vllm.SamplingParams(
                temperature=0, max_tokens=request["tokens"], ignore_eos=True, detokenize=False
            )
            engine.add_request(str(number), {"prompt_token_ids": request["prompt"]}, params)
        results: list[tuple[list[float], int]] = [([], 0) for _ in requests]
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                number = int(output.request_id)
                stamps, before = results[number]
                count = len(output.outputs[0].token_ids)
                if count > before:
                    stamps.append(now)
                    results[number] = (stamps, count)
        return results

    def about(self) -> dict[str, Any]:
        """See external_main.measure_engine()."""
        config = self._llm.llm_engine.vllm_config
        return {
            "version": self._vllm.__version__,
            "dtype": str(config.model_config.dtype),
            "quantization": config.model_config.quantization,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        }

    def close(self) -> None:
        """See external_main.measure_engine()."""
        shutdown = getattr(self._llm.llm_engine.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()


def open_engine(task: dict[str, Any]) -> VLLMEngine:
    """Load the model."""
    settings = task["settings"]
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = settings.get("kv_gib", str(KV_GIB))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, task["cpus"])))
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    vllm = importlib.import_module("vllm")
    options = {name: settings[name] for name in ("quantization",) if name in settings}
    if "max_num_batched_tokens" in settings:
        options["max_num_batched_tokens"] = int(settings["max_num_batched_tokens"])
    llm = vllm.LLM(
        settings.get("model", task["model"]), dtype=task["dtype"], max_model_len=task["longest"],
        max_num_seqs=int(settings.get("max_num_seqs", MAX_NUM_SEQS)), enable_prefix_caching=True, **options,
    )  # fmt: skip
    return VLLMEngine(llm, vllm)
