"""compare_streams(): decode tokens/s of 1, 8 and 32 streams, against llama.cpp's engine without a server.

    python -m cpu_bench.stream_speed SPEC.json RESULT.json

measures Chairlift in a process of its own. llama-batched-bench measures llama.cpp. Both have the same prompt and output
lengths, and count the tokens behind each stream's first one.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, cast

from chairlift.bench.offline.child_process import exit_with_parent
from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.subprocess_run import environ_with, exchange
from chairlift.bench.offline.warm_up import warm_up
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.build import prepare
from chairlift.llm.options import Options

STREAMS = (1, 8, 32)
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64

QUANTIZATIONS = {"none": "", "int8": "@q8_0", "int8-channel": "@q8_0"}
"""Chairlift's quantization -> label of llama.cpp's model."""

Rates = dict[str, float]
"""Number of streams -> decode tokens per second of all together."""


def compare_streams(model: Path, llama: Sequence[str], ggufs: Mapping[str, Path], repeat: int) -> dict[str, Any]:
    """Return rates of both engines, `repeat` times in alternating order, and the medians of their ratios.

    Args:
        model: a model's folder.
        llama: the command of llama-batched-bench with the number of threads.
        ggufs: label -> the model in llama.cpp's format.
        repeat: runs of each.

    Raises CalledProcessError, and ChairliftError if a run of Chairlift fails.
    """
    arms = [(quantization, None) for quantization in QUANTIZATIONS] + [(label, path) for label, path in ggufs.items()]
    runs: dict[str, list[Rates]] = {}
    for number in range(repeat):
        for name, path in arms if number % 2 == 0 else arms[::-1]:
            if path is None:
                options = {"dtype": "bfloat16", "quantization": name, "enable_prefix_caching": False}
                spec = json.dumps({"model": str(model), "options": options}).encode()
                command = [sys.executable, "-P", "-m", "cpu_bench.stream_speed"]
                rates = exchange(command, spec, environ=environ_with(Path(__file__).parents[1]))["rates"]
                runs.setdefault(f"chairlift {name}", []).append(rates)
            else:
                runs.setdefault(f"llama.cpp{name}", []).append(llama_rates([*llama, "-m", str(path)]))
    return {"streams": STREAMS, "prompt": PROMPT_TOKENS, "output": OUTPUT_TOKENS, "runs": runs, "ratios": ratios(runs)}


def ratios(runs: Mapping[str, Sequence[Rates]]) -> dict[str, Rates]:
    """Return the medians over the runs of Chairlift's rates over llama.cpp's, by quantization and streams."""
    return {
        quantization: {
            streams: statistics.median(
                ours[streams] / theirs[streams]
                for ours, theirs in zip(runs[f"chairlift {quantization}"], runs[f"llama.cpp{label}"], strict=True)
            )
            for streams in map(str, STREAMS)
        }
        for quantization, label in QUANTIZATIONS.items()
        if f"llama.cpp{label}" in runs
    }


def llama_rates(command: Sequence[str]) -> Rates:
    """Return the rates of llama-batched-bench. Raises CalledProcessError."""
    context = max(STREAMS) * (PROMPT_TOKENS + OUTPUT_TOKENS)
    lengths = ("-npp", str(PROMPT_TOKENS), "-ntg", str(OUTPUT_TOKENS), "-npl", ",".join(map(str, STREAMS)))
    output = subprocess.run(
        [*command, "-c", str(context), *lengths, "--output-format", "jsonl"], capture_output=True, text=True, check=True
    ).stdout
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {str(row["pl"]): row["speed_tg"] for row in rows}


def own_rates(model: str, options: dict[str, Any]) -> Rates:
    """Return Chairlift's rates in this process. Raises ConfigError and ModelError."""
    random, found = Random(0), {}
    with closing((service := prepare(model, cast("Options", options)).start()).client):
        warm_up(service)
        for streams in STREAMS:
            prompts = [tuple(random.randrange(256) for _ in range(PROMPT_TOKENS)) for _ in range(streams)]
            items = [WorkloadRequest(at=0.0, prompt_token_ids=each, output_tokens=OUTPUT_TOKENS) for each in prompts]
            records = drive_workload(service, Workload(name="streams", seed=0, items=tuple(items))).records
            began, ended = (max(record.stamps[place] for record in records) for place in (0, -1))
            found[str(streams)] = streams * (OUTPUT_TOKENS - 1) / (ended - began)
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
