"""OpenVINOEngine: OpenVINO GenAI's continuous batching, with outputs as token ids; runs in OpenVINO's own Python."""

import importlib
import time
from typing import Any

MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 256
KV_GIB = 4
PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


class OpenVINOEngine:
    """A pipeline that is stepped explicitly, so that each step is timed."""

    def __init__(self, genai: Any, openvino: Any, pipeline: Any, properties: dict[str, Any], scheduler: Any) -> None:
        self._genai, self._openvino, self._pipeline = genai, openvino, pipeline
        self._properties, self._scheduler = properties, scheduler
        self._next = 0

    def run(self, requests: list[dict[str, Any]]) -> list[tuple[list[float], int]]:
        """See external_main.measure_engine()."""
        numpy = importlib.import_module("numpy")
        handles = []
        for request in requests:
            config = self._genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = request["tokens"]
            config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
            prompt = self._openvino.Tensor(numpy.array([request["prompt"]], dtype=numpy.int64))
            handles.append(self._pipeline.add_request(self._next, prompt, config))
            self._next += 1
        results: list[tuple[list[float], int]] = [([], 0) for _ in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for number, handle in enumerate(handles):
                while handle.can_read():
                    stamps, count = results[number]
                    stamps.append(now)
                    results[number] = (stamps, count + sum(len(each.generated_ids) for each in handle.read().values()))
        return results

    def about(self) -> dict[str, Any]:
        """See external_main.measure_engine()."""
        return {
            "version": self._genai.__version__,
            "properties": self._properties,
            "max_num_seqs": self._scheduler.max_num_seqs,
            "max_num_batched_tokens": self._scheduler.max_num_batched_tokens,
        }

    def close(self) -> None:
        """See external_main.measure_engine()."""


def open_engine(task: dict[str, Any]) -> OpenVINOEngine:
    """Load the model."""
    settings = task["settings"]
    genai, openvino = importlib.import_module("openvino_genai"), importlib.import_module("openvino")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = int(settings.get("kv_gib", KV_GIB))
    scheduler.max_num_batched_tokens = int(settings.get("max_num_batched_tokens", MAX_NUM_BATCHED_TOKENS))
    scheduler.max_num_seqs = int(settings.get("max_num_seqs", MAX_NUM_SEQS))
    scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": settings.get("precision", PRECISIONS.get(task["dtype"], "f32")),
        "INFERENCE_NUM_THREADS": task["threads"],
        "PERFORMANCE_HINT": "LATENCY",
    }
    if "kv_precision" in settings:
        properties["KV_CACHE_PRECISION"] = settings["kv_precision"]
    if "quantized_group" in settings:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = int(settings["quantized_group"])
    pipeline = genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)
    return OpenVINOEngine(genai, openvino, pipeline, properties, scheduler)
