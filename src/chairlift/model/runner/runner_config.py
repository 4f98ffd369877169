"""RunnerConfig: the settings of the torch runner; this module imports no torch, so that a client can build one."""

from dataclasses import dataclass, field

import msgspec

KERNELS = ("auto", "native", "torch")
QUANTIZATIONS = ("none", "int8", "int8-channel")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """The model folder and the limits of the runner.

    Attributes:
        model: folder with config.json and safetensors; "" is a tiny random model (seeded by `seed`).
        dtype: "auto" is the checkpoint's own; else float64, float32, bfloat16, float16.
        device: a torch device name; "auto" is cuda where there is one, else cpu.
        block_size: tokens in a block of the KV cache.
        num_blocks: blocks of the KV cache; None is derived from memory.
        max_memory: share (0..1) of the memory free after loading that the KV cache may use, or bytes.
        max_batch_tokens: tokens in the largest step, for the memory that a step needs.
        max_running_requests: sequences in the largest step.
        max_model_len: tokens of a sequence; None is the model's own limit.
        attention_backend: a name of model/attention/registry.py; "auto" is the fastest on this machine.
        kernels: "native" are Chairlift's own for CPUs, "torch" are torch's, "auto" native ones where they can run.
        quantization: of the weights, by the native kernels: "none", "int8" (groups of 32), "int8-channel".
        cpu_threads: threads of the native kernels; None is one per core, less one for the other processes where the
            machine has more than two cores.
        packed_weights_dir: folder that keeps packed weights for the next start; None keeps none.
        seed: seed of the tiny model's random weights.
        logits_processor_factories: name -> "package.module:factory" of the processors that requests may choose.
    """

    model: str = ""
    dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    num_blocks: int | None = None
    max_memory: float | int | None = None
    max_batch_tokens: int = 2048
    max_running_requests: int = 256
    max_model_len: int | None = None
    attention_backend: str = "auto"
    kernels: str = "auto"
    quantization: str = "none"
    cpu_threads: int | None = None
    packed_weights_dir: str | None = None
    seed: int = 0
    logits_processor_factories: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the bytes for a RunnerSpec."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(payload: bytes) -> "RunnerConfig":
        """Decode the bytes that `encode` returned."""
        return msgspec.msgpack.decode(payload, type=RunnerConfig)
