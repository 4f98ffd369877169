"""The keyword options of LLM and AsyncLLM; each default stands in the config of the part it belongs to."""

from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """All of them may be left out.

    Attributes:
        dtype: "auto" (the checkpoint's own), "float64", "float32", "bfloat16", "float16".
        device: "auto", or a torch device name.
        block_size: tokens in a page of the KV cache.
        num_blocks: pages; derived from memory when left out.
        max_memory: share (0..1) of the free memory that the KV cache may take, or bytes.
        max_batch_tokens: tokens in one step.
        max_running_requests: requests that ride at once.
        max_prefill_tokens: prompt tokens in one step; when left out 256 on native kernels, else all that fit.
        long_prefill_threshold: prompt tokens of one request in one step while others want some.
        max_chunk_tokens: prompt tokens of one request in one step, in any case.
        max_queue_size: requests in line.
        max_model_len: tokens of one request, prompt and output.
        policy: order of the line: "fifo", "priority", "fair", "cache_aware".
        batching: how a step is shared: "mixed", "fifo", "prefill_first", "decode_first", "static".
        safety_margin: of batching "fifo": share of free blocks below which only generating requests ride.
        priority_ageing: of policy "priority": seconds of waiting that are worth one step of priority.
        tenant_weights: of policy "fair": shares of service by tenant, 1 where none is given.
        target_itl_ms: milliseconds a step should take while somebody generates; prompts get what that leaves.
        enable_prefix_caching: share the blocks of equal prefixes.
        overlap: two launches in flight.
        attention_backend: name of the attention backend; "auto" is the fastest here.
        kernels: of a CPU: "native" are Chairlift's own, "torch" are torch's, "auto" native ones where they can run.
        quantization: of the weights, by the native kernels: "none", "int8" (groups of 32), "int8-channel".
        cpu_threads: of the native kernels; one a core, less one where there are more than two, when left out.
        weight_cache: a folder in which weights packed for the native kernels are kept, so that the next start is fast.
        seed: where the seeds of requests without one come from; None for the system's randomness.
        revision: of a model on the hub.
        profile: a file for a trace of the steps, which opens in Perfetto.
        logits_processors: name -> "package.module:factory" of those that requests may choose (custom_processors.py).
        client: "inline" is an engine in a thread, "process" in a process of its own.
    """

    dtype: str
    device: str
    block_size: int
    num_blocks: int | None
    max_memory: float | int | None
    max_batch_tokens: int
    max_running_requests: int
    max_prefill_tokens: int | None
    long_prefill_threshold: int | None
    max_chunk_tokens: int | None
    max_queue_size: int
    max_model_len: int | None
    policy: str
    batching: str
    safety_margin: float | None
    priority_ageing: float
    tenant_weights: dict[str, float]
    target_itl_ms: float | None
    enable_prefix_caching: bool
    overlap: bool
    attention_backend: str
    kernels: str
    quantization: str
    cpu_threads: int | None
    weight_cache: str | None
    seed: int | None
    revision: str | None
    profile: str | None
    logits_processors: dict[str, str]
    client: Literal["inline", "process"]
