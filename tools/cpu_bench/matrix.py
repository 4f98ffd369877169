"""Runs: which arms meet on which workload, as command lines of `chairlift bench offline`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu_bench.peers import Peers

WORKLOADS = ("w1", "w2", "w3")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms that meet.

    Attributes:
        name: in the report's file name.
        peers: with the labels that catalogue.py and peers.py know.
        compared: an engine option of ours with its values; "" for none.
    """

    name: str
    peers: tuple[str, ...]
    compared: str = ""


MEETINGS = (
    Comparison("bf16", ("openvino", "vllm", "llama.cpp")),
    Comparison("int8", ("openvino@int8", "llama.cpp@q8_0"), "quantization=int8,int8-channel"),
    Comparison("transformers", ("transformers", "transformers-single")),
)


def command(peers: Peers, model: str, workload: str, meeting: Comparison, repeat: int, into: Path) -> list[str]:
    """Return the words behind `chairlift` for one run; peers that are not prepared are left out."""
    words = ["bench", "offline", str(peers.model(model)), "--dtype", "bfloat16", "--workload", workload]
    words += ["--repeat", str(repeat)]
    if meeting.compared:
        words += ["--compare", meeting.compared]
    for whole in meeting.peers:
        name, at, label = whole.partition("@")
        settings = [] if name.startswith("transformers") else peers.settings(name, at + label, model)
        if settings is not None:
            words += ["--against", whole]
            words += [word for setting in settings for word in ("--peer", setting)]
    stem = into / f"cpu-{model}-{workload}-{meeting.name}"
    return [*words, "--json", f"{stem}.json", "--plot", f"{stem}.png"]


def commands(
    peers: Peers, models: Sequence[str], workloads: Sequence[str], meetings: Sequence[str], repeat: int, into: Path
) -> Iterator[list[str]]:
    """Return the words of every run. transformers meets us on W1 alone: it takes minutes a turn."""
    for model in models:
        for workload in workloads:
            for meeting in MEETINGS:
                if meeting.name in meetings and (workload == "w1" or meeting.name != "transformers"):
                    yield command(peers, model, workload, meeting, repeat, into)
