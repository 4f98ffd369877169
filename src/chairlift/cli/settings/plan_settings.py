"""PLAN, PLAN_ENGINE: the settings of `plan`."""

from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import integer, num_tokens, number

PLAN = (
    Setting(name="gpus", parse=integer, metavar="N", default=0,
            help="number of GPUs at hand; 0 plans for CPU machines, of which each runs one replica"),
    Setting(name="gpu_memory", parse=number, metavar="GB", default=80, help="memory of a GPU in GB"),
    Setting(name="cores", parse=integer, metavar="N", default_text="those of this machine",
            help="number of cores of a CPU machine"),
    Setting(name="memory", parse=number, metavar="GB", default_text="that of this machine",
            help="memory of a CPU machine in GB"),
    Setting(name="memory_bandwidth", parse=number, metavar="GB/S",
            default_text="2039 for a GPU, 25 for each core up to 200",
            help="memory bandwidth of a GPU or of a CPU machine in GB a second"),
    Setting(name="tflops", parse=number, metavar="X", default_text="312 for a GPU, 0.4 for each core",
            help="speed of a GPU or of a CPU machine in TFLOPS, in 16 bits without sparsity"),
    Setting(name="rate", parse=number, metavar="R", default=1, help="requests per second of all replicas together"),
    Setting(name="input", parse=num_tokens, metavar="N", default=512, help="number of prompt tokens of a request"),
    Setting(name="output", parse=num_tokens, metavar="N", default=128, help="number of output tokens of a request"),
    Setting(name="ttft_ms", parse=number, metavar="MS", default=2000, help="most milliseconds to the first token"),
    Setting(name="itl_ms", parse=number, metavar="MS", default=100,
            help="most milliseconds between two tokens, as the mean of a request"),
    Setting(name="attainment", parse=number, metavar="X", default=0.95,
            help="share of the requests that must be within --ttft-ms and --itl-ms"),
    Setting(name="price", parse=number, metavar="X", help="price of one GPU, or of one CPU machine, for an hour"),
    Setting(name="step_model", metavar="FILE", default_text="estimated from --memory-bandwidth and --tflops",
            help="step times of a replica, or measured steps to fit them to: a trace of --profile"),
)  # fmt: skip
"""The settings of `plan`."""

PLAN_ENGINE = (
    "revision", "dtype", "quantization", "kv_cache_dtype", "block_size", "max_batch_tokens",
    "max_running_requests", "max_prefill_tokens", "target_itl_ms",
)  # fmt: skip
"""Names of the engine's settings that `plan` has, too."""
