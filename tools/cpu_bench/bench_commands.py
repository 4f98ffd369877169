"""make_commands(): the command lines of `chairlift bench offline` for each model, workload and comparison."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu_bench.peer_environments import PeerEnvironments

WORKLOADS = ("w1", "w2", "w3")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arms that one benchmark run compares.

    Attributes:
        name: part of the report's file name.
        peers: other engines, with labels that bench/peers/registry.py and peer_environments.py define.
        compared: an option of our engine with the values to compare; "" for none.
        dtype: of activations, and of weights that are not quantized.
        file: label of llama.cpp's model, which our engine runs, too; None for the model's folder.
    """

    name: str
    peers: tuple[str, ...]
    compared: str = ""
    dtype: str = "bfloat16"
    file: str | None = None


COMPARISONS = (
    Comparison("bf16", ("openvino", "vllm", "llama.cpp")),
    Comparison("int8", ("openvino@int8", "llama.cpp@q8_0"), "quantization=int8,int8-channel"),
    Comparison("int4", ("openvino@int4",), "quantization=int4"),
    *(Comparison(name, (f"llama.cpp@{name}",), file=f"@{name}") for name in ("q4_0", "q4_k_m", "q8_0")),
    Comparison("float32", ("openvino@fp32", "vllm", "llama.cpp@f32"), dtype="float32"),
    Comparison("transformers", ("transformers", "transformers-single")),
)


def make_command(
    environments: PeerEnvironments, model: str, workload: str, comparison: Comparison, repeat: int, into: Path
) -> list[str]:
    """Return the arguments of `chairlift` for one run; peers that are not prepared are left out."""
    own = environments.model(model) if comparison.file is None else environments.gguf(comparison.file, model)
    args = ["bench", "offline", str(own), "--dtype", comparison.dtype]
    args += ["--workload", workload]
    args += ["--repeat", str(repeat)]
    if comparison.compared:
        args += ["--compare", comparison.compared]
    for peer in comparison.peers:
        name, separator, label = peer.partition("@")
        settings = [] if name.startswith("transformers") else environments.peer_settings(name, separator + label, model)
        if settings is not None:
            args += ["--against", peer]
            args += [arg for setting in settings for arg in ("--peer", setting)]
    forced = "-avx2" if environments.forces_avx2 else ""
    stem = into / f"cpu-{model}-{workload}-{comparison.name}{forced}"
    return [*args, "--json", f"{stem}.json", "--plot", f"{stem}.png"]


def make_commands(
    environments: PeerEnvironments,
    models: Sequence[str],
    workloads: Sequence[str],
    comparisons: Sequence[str],
    repeat: int,
    into: Path,
) -> Iterator[list[str]]:
    """Yield the arguments of every run; transformers runs only W1, because each of its runs takes minutes."""
    for model in models:
        for workload in workloads:
            for comparison in COMPARISONS:
                if comparison.name in comparisons and (workload == "w1" or comparison.name != "transformers"):
                    yield make_command(environments, model, workload, comparison, repeat, into)
