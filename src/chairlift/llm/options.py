"""Options: the keyword options of LLM and AsyncLLM; each default is in the config of its own component."""

from typing import Any, Literal, TypedDict


class Options(TypedDict, total=False):
    """Optional keyword options of LLM and AsyncLLM.

    Attributes:
        dtype: "auto" (the checkpoint's own), "float64", "float32", "bfloat16", "float16"; also "half", "fp16", "bf16",
            "float", "fp32".
        device: "auto", or a torch device name.
        block_size: tokens in a block of the KV cache.
        num_blocks: number of blocks; derived from memory when left out.
        max_memory: share (0..1) of the free memory that the KV cache may take, or bytes: on each GPU, or on a CPU for
            all ranks together.
        max_batch_tokens: tokens in one step.
        max_running_requests: sequences that run at the same time.
        max_prefill_tokens: prompt tokens in one step; when left out 256 on native kernels, else all that fit.
        long_prefill_threshold: prompt tokens of one request in one step while other requests need prefill.
        max_chunk_tokens: prompt tokens of one request in one step, in any case.
        max_queue_size: sequences in the waiting queue.
        max_model_len: tokens of one request, prompt and output; "auto" is as many as the KV cache holds, at most the
            model's own limit.
        scheduling_policy: order of the waiting queue: "fifo", "priority", "fair", "cache_aware".
        batching_policy: how a step is shared: "mixed", "fifo", "prefill_first", "decode_first", "static".
        safety_margin: of batching_policy "fifo": share of free blocks below which only decoding requests are scheduled.
        priority_ageing: of scheduling_policy "priority": seconds of waiting that equal one level of priority.
        tenant_weights: of scheduling_policy "fair": shares of service by tenant, 1 for a tenant without one.
        target_itl_ms: target milliseconds of a step with decoding requests; prefill gets the time that decoding leaves.
        tune_limits: let max_running_requests, max_batch_tokens and the blocks in use follow the measured utilization.
        min_running_requests: lower bound of max_running_requests with tune_limits.
        min_batch_tokens: lower bound of max_batch_tokens with tune_limits.
        speculative_config: speculative decoding, which changes no output: "method" ("auto", "ngram", "suffix",
            "prediction", "draft_model", "none"), "num_speculative_tokens" (most drafts of a sequence in a step),
            "prompt_lookup_min", "prompt_lookup_max", "suffix_max_bytes", "model" (the draft model). When left out the
            method is "auto".
        enable_prefix_caching: share the blocks of equal prefixes.
        overlap: keep two steps in flight; when left out only on a CUDA device.
        model_impl: "native" are Chairlift's own architectures, "transformers" its modules, "auto" whichever fits.
        kv_cache_dtype: of keys and values: "auto" (the model's), "fp8" (8-bit floats, e4m3; also "fp8_e4m3").
        attention_backend: name of the attention backend; "auto" is the fastest here.
        kernels: of a CPU: "native" are Chairlift's own, "torch" are torch's, "auto" is native where supported.
        quantization: of the weights: "auto" is that of the file, "none" dequantizes it; by the native kernels "int8"
            and "int4" (groups of 32), "int8-channel"; by torch, for GPUs, "fp8" (8-bit floats, e4m3). "awq", "gptq",
            "compressed-tensors", "bitsandbytes" and "gguf" are "auto" for a checkpoint that is quantized so.
        cpu_threads: of the native kernels; when left out one per core, minus one with more than two cores.
        packed_weights_dir: a folder for weights packed for the native kernels, so that the next start is fast.
        tensor_parallel_size: processes that share every layer of the model, each on its own device.
        use_cuda_graph: whether decode steps on a CUDA device are CUDA graphs: "on", "off", "auto" where they can be.
        enable_lora: let requests have LoRA adapters; by torch's kernels, for Chairlift's own architectures.
        deterministic: give a request the same tokens whatever else is in its batch, on NVIDIA GPUs too.
        seed: seeds the source of seeds for requests without one; None uses the system's randomness.
        chat_template: path of a Jinja file that replaces the model's chat template.
        default_chat_template_kwargs: variables of the chat template for requests that do not set them.
        reasoning_parser: format of the model's reasoning; "auto" finds it in the chat template, "none" leaves
            reasoning in the text.
        revision: branch, tag or commit of a hub model.
        hf_file: name of the GGUF file of a hub model.
        tokenizer: folder, GGUF file or hub id of the tokenizer; the model's own by default.
        profile: a file for a trace of the steps, for Perfetto.
        logits_processor_factories: name -> "package.module:factory" that requests may choose (custom_processors.py).
        engine_mode: "inline" runs the engine in a thread, "process" in its own process.
        heartbeat_timeout: seconds without message or activity after which an engine process is replaced.
        step_timeout: seconds of a step after which an engine process is replaced; the time in which other programs
            keep the step from running does not count.
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
    max_model_len: int | Literal["auto"] | None
    scheduling_policy: str
    batching_policy: str
    safety_margin: float | None
    priority_ageing: float
    tenant_weights: dict[str, float]
    target_itl_ms: float | None
    tune_limits: bool
    min_running_requests: int
    min_batch_tokens: int
    speculative_config: dict[str, Any] | None
    enable_prefix_caching: bool
    overlap: bool | None
    model_impl: str
    kv_cache_dtype: str
    attention_backend: str
    kernels: str
    quantization: str
    cpu_threads: int | None
    packed_weights_dir: str | None
    tensor_parallel_size: int
    use_cuda_graph: str
    enable_lora: bool
    deterministic: bool
    seed: int | None
    chat_template: str | None
    default_chat_template_kwargs: dict[str, Any]
    reasoning_parser: str
    revision: str | None
    hf_file: str | None
    tokenizer: str | None
    profile: str | None
    logits_processor_factories: dict[str, str]
    engine_mode: Literal["inline", "process"]
    heartbeat_timeout: float
    step_timeout: float
