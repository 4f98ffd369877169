"""compare_streams(): decode tokens/s of 1, 8 and 32 streams, and of a prompt, against llama.cpp without a server.

    python -m cpu_bench.stream_speed SPEC.json RESULT.json

measures Chairlift in a process of its own. llama-batched-bench measures llama.cpp. Both have the same prompt and output
lengths, and count the tokens behind each stream's first one, or those of a prompt until its first output token.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from chairlift.bench.offline.child_process import exit_with_parent
from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.request_records import RequestRecord
from chairlift.bench.offline.subprocess_run import environ_with, exchange
from chairlift.bench.offline.warm_up import warm_up
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.build import prepare
from chairlift.llm.options import Options

STREAMS = (1, 8, 32)
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64

PROMPT = "prompt"
"""Key of the rate of one prompt of LONG_PROMPT_TOKENS tokens."""

LONG_PROMPT_TOKENS = 512


class Pair(NamedTuple):
    """What is compared.

    Attributes:
        quantization: of Chairlift.
        label: of llama.cpp's model.
        of_file: whether Chairlift runs the same file; else the model's folder.
    """

    quantization: str
    label: str
    of_file: bool = False


PAIRS = {
    "none": Pair("none", ""), "int8": Pair("int8", "@q8_0"), "int8-channel": Pair("int8-channel", "@q8_0"),
    "int4": Pair("int4", "@q4_0"), "Q8_0": Pair("auto", "@q8_0", True), "Q4_0": Pair("auto", "@q4_0", True),
    "Q4_K_M": Pair("auto", "@q4_k_m", True),
}  # fmt: skip

Rates = dict[str, float]
"""Number of streams -> decode tokens per second of all together; PROMPT -> prompt tokens per second."""


def compare_streams(
    model: Path, llama: Sequence[str], ggufs: Mapping[str, Path], repeat: int, names: Sequence[str]
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield, after each run, the rates of both engines so far and the medians of their ratios.

    Each has `repeat` runs, in alternating order; a pair's two runs follow each other.

    Args:
        model: a model's folder.
        llama: the command of llama-batched-bench with the number of threads.
        ggufs: label -> the model in llama.cpp's format.
        repeat: runs of each.
        names: keys of PAIRS.

    Raises CalledProcessError, and ChairliftError if a run of Chairlift fails.
    """
    pairs = {name: PAIRS[name] for name in names}
    arms = list(dict.fromkeys(arm for name, pair in pairs.items() for arm in (name, pair.label)))
    lengths = {"prompt": PROMPT_TOKENS, "output": OUTPUT_TOKENS, "long_prompt": LONG_PROMPT_TOKENS}
    runs: dict[str, list[Rates]] = {}
    for number in range(repeat):
        for name in arms if number % 2 == 0 else arms[::-1]:
            if name in pairs:
                pair = pairs[name]
                options = {"dtype": "bfloat16", "quantization": pair.quantization, "enable_prefix_caching": False}
                path = ggufs[pair.label] if pair.of_file else model
                spec = json.dumps({"model": str(path), "options": options}).encode()
                command = [sys.executable, "-P", "-m", "cpu_bench.stream_speed"]
                rates = exchange(command, spec, environ=environ_with(Path(__file__).parents[1]))["rates"]
                runs.setdefault(f"chairlift {name}", []).append(rates)
            else:
                runs.setdefault(f"llama.cpp{name}", []).append(llama_rates([*llama, "-m", str(ggufs[name])]))
            yield {"streams": STREAMS, **lengths, "runs": runs, "ratios": ratios(runs)}


def ratios(runs: Mapping[str, Sequence[Rates]]) -> dict[str, Rates]:
    """Return the medians of Chairlift's rates over llama.cpp's, by pair and rate, over the runs that both have."""
    return {
        name: {
            key: statistics.median(
                ours[key] / theirs[key]
                for ours, theirs in zip(runs[f"chairlift {name}"], runs[f"llama.cpp{pair.label}"], strict=False)
            )
            for key in (*map(str, STREAMS), PROMPT)
        }
        for name, pair in PAIRS.items()
        if f"chairlift {name}" in runs and f"llama.cpp{pair.label}" in runs
    }


def llama_rates(command: Sequence[str]) -> Rates:
    """Return the rates of llama-batched-bench. Raises CalledProcessError."""

    def rows(prompt: int, output: int, streams: Sequence[int]) -> list[dict[str, Any]]:
        context = max(streams) * (prompt + output)
        lengths = ("-npp", str(prompt), "-ntg", str(output), "-npl", ",".join(map(str, streams)))
        found = subprocess.run(
            [*command, "-c", str(context), *lengths, "--output-format", "jsonl"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return [json.loads(line) for line in found.splitlines() if line.startswith("{")]

    decoded = {str(row["pl"]): row["speed_tg"] for row in rows(PROMPT_TOKENS, OUTPUT_TOKENS, STREAMS)}
    (prompt,) = rows(LONG_PROMPT_TOKENS, 1, (1,))
    return {**decoded, PROMPT: prompt["speed_pp"]}


def own_rates(model: str, options: dict[str, Any]) -> Rates:
    """Return Chairlift's rates in this process. Raises ConfigError and ModelError."""
    random, found = Random(0), {}

    def records(streams: int, prompt: int, output: int) -> Sequence[RequestRecord]:
        prompts = [tuple(random.randrange(256) for _ in range(prompt)) for _ in range(streams)]
        items = [WorkloadRequest(at=0.0, prompt_token_ids=each, output_tokens=output) for each in prompts]
        return drive_workload(service, Workload(name="streams", seed=0, items=tuple(items))).records

    with closing((service := prepare(model, cast("Options", options)).start()).client):
        warm_up(service)
        for streams in STREAMS:
            made = records(streams, PROMPT_TOKENS, OUTPUT_TOKENS)
            began, ended = (max(record.stamps[place] for record in made) for place in (0, -1))
            found[str(streams)] = streams * (OUTPUT_TOKENS - 1) / (ended - began)
        found[PROMPT] = LONG_PROMPT_TOKENS / records(1, LONG_PROMPT_TOKENS, 1)[0].stamps[0]
    return found


def main(args: Sequence[str]) -> int:
    """Run own_rates() with the arguments in a JSON file and write the result."""
    spec_path, result_path = map(Path, args)
    rates = own_rates(**json.loads(spec_path.read_text(encoding="utf-8")))
    result_path.write_text(json.dumps({"rates": rates}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))
