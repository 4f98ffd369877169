"""`python -m cpu_roofline.expert_decode MODEL`: decode steps of a model with experts, beside the memory bandwidth.

A step reads the weights that every token uses once, and each expert that some token chose once. With random weights
every expert is as likely as any other, which gives the expected number of experts of a batch.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from chairlift import LLM, SamplingParams
from chairlift.bench.report import environment, report, report_output
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from cpu_roofline.hardware_peaks import Reader

PROMPT_TOKENS = 16
SHORT, LONG = 8, 72
"""Output tokens of the two runs whose difference is the time of the steps between."""

NUM_ROUNDS = 3


def main(words: Sequence[str]) -> int:
    """Run the measurement and return the exit code."""
    parser = argparse.ArgumentParser(prog="cpu_roofline.expert_decode", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of a model whose layers all have experts")
    parser.add_argument("--batches", default="1,8,32", help="numbers of sequences, with commas (%(default)s)")
    parser.add_argument("--quantization", default="none", help="quantization of the weights (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(words)
    source = environment.source()
    fields = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    fields.setdefault("num_experts", fields.get("num_local_experts"))
    batches = [int(number) for number in options.batches.split(",")]
    runs = _measure(options, fields, batches)
    result = {"model": options.model.name, "quantization": options.quantization, "runs": runs}
    document = report.with_environment(
        "chairlift expert decode", result, source, ["cpu_roofline.expert_decode", *words]
    )
    report_output.tell(_table(runs), options.json, document, report_output.print_line)
    return 0


def _measure(options: argparse.Namespace, fields: Mapping[str, Any], batches: Sequence[int]) -> list[dict[str, Any]]:
    shared, expert = weights_of(fields)
    runs = []
    with tempfile.TemporaryDirectory(prefix="expert-decode-") as folder:
        reader = Reader(Path(folder), chosen_cpus(None))
        with LLM(
            str(options.model), dtype="bfloat16", quantization=options.quantization, num_blocks=1024,
            speculative_config={"method": "none"}, enable_prefix_caching=False,
        ) as llm:  # fmt: skip
            for batch in batches:
                rates, seconds = [reader.rate()], []
                for number in range(NUM_ROUNDS):
                    seconds.append(_step_seconds(llm, batch, fields["vocab_size"], number))
                    rates.append(reader.rate())
                experts = expected_experts(fields["num_experts"], fields["num_experts_per_tok"], batch)
                gigabytes = 2 * (shared + fields["num_hidden_layers"] * experts * expert) / 1e9
                took, rate = sorted(seconds)[NUM_ROUNDS // 2], sorted(rates)[len(rates) // 2]
                runs.append({
                    "batch": batch, "step_seconds": seconds, "memory_gigabytes_per_second": rates,
                    "expected_experts_of_a_layer": experts, "gigabytes_of_bfloat16": gigabytes,
                    "share_of_bandwidth": gigabytes / took / rate,
                })  # fmt: skip
    return runs


def weights_of(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of weights that every token uses, and that of one expert of one layer, from a config.json."""
    hidden, dim = fields["hidden_size"], fields["head_dim"]
    queries, keys = fields["num_attention_heads"] * dim, fields["num_key_value_heads"] * dim
    layer = hidden * (2 * queries + 2 * keys + fields["num_experts"])
    shared = fields["num_hidden_layers"] * layer + hidden * fields["vocab_size"]
    return shared, 3 * hidden * fields["moe_intermediate_size"]


def expected_experts(num_experts: int, per_token: int, num_tokens: int) -> float:
    """Return the expected number of different experts that so many tokens choose, each with the same probability."""
    return float(num_experts * (1 - (1 - per_token / num_experts) ** num_tokens))


def _step_seconds(llm: LLM, batch: int, vocab_size: int, seed: int) -> float:
    """Return the mean seconds of a decode step with sampled tokens."""
    rng = Random(f"{seed} {batch}")
    prompts = [[rng.randrange(10, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
    took = {}
    for length in (SHORT, LONG):
        params = [
            SamplingParams(temperature=1.0, seed=place, max_tokens=length, ignore_eos=True) for place in range(batch)
        ]
        started_at = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        took[length] = time.perf_counter() - started_at
    return (took[LONG] - took[SHORT]) / (LONG - SHORT)


def _table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{run['batch']:3} sequences: {1e3 * sorted(run['step_seconds'])[NUM_ROUNDS // 2]:.1f} ms a step, "
        f"{run['gigabytes_of_bfloat16']:.2f} GB, {run['share_of_bandwidth']:.0%} of the memory bandwidth"
        for run in runs
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
