"""`python -m embedding_speed`: measures embeddings of many texts at once against one text after the other.

Each round embeds new texts in both ways, in random order, and compares the embeddings. No text shares a prefix of a
block with another, so the prefix cache does not help either.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from chairlift import LLM
from chairlift.bench.report import environment, report
from chairlift.llm.embeddings import EmbeddingOutput

Texts = list[list[int]]

MAX_TOKEN = 256
"""Token ids below this are in every vocabulary."""


def main(words: list[str]) -> int:
    """Run the measurement and return the exit code: 0, or 1 where both ways do not give the same embeddings."""
    parser = argparse.ArgumentParser(prog="embedding_speed", description=__doc__)
    parser.add_argument("model", nargs="?", help="a model's folder or name; the embedded demo model by default")
    parser.add_argument("--texts", type=int, default=64, help="texts of a round (%(default)s)")
    parser.add_argument("--tokens", type=int, nargs=2, default=[8, 64], help="fewest and most tokens of a text")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of two measurements (%(default)s)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="greatest difference of a number (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(words)
    source = environment.source()
    with LLM(options.model) as llm:
        rounds = [_measure(llm, options, Random(number)) for number in range(options.rounds + 1)][1:]
    result = summarize(rounds) | {"texts": options.texts, "tokens": options.tokens, "rounds": rounds}
    document = report.with_environment("chairlift embedding speed", result, source, ["embedding_speed", *words])
    report.tell(_table(result), options.json, document, report.print_line)
    return 1 if result["greatest_difference"] > options.tolerance else 0


def _measure(llm: LLM, options: argparse.Namespace, random: Random) -> dict[str, float]:
    """Return the tokens a second of both ways, and the greatest difference of their embeddings."""
    ways: list[tuple[str, Callable[[LLM, Texts], list[EmbeddingOutput]]]] = [("at_once", _at_once), ("single", _single)]
    random.shuffle(ways)
    texts = _texts(random, options.texts, options.tokens)
    speeds, embeddings = {}, {}
    for name, embed in ways:
        started_at = time.perf_counter()
        embeddings[name] = embed(llm, texts)
        speeds[name] = sum(map(len, texts)) / (time.perf_counter() - started_at)
        llm.flush_cache()
    pairs = zip(embeddings["at_once"], embeddings["single"], strict=True)
    return speeds | {"difference": max(_difference(first.embedding, second.embedding) for first, second in pairs)}


def _at_once(llm: LLM, texts: Texts) -> list[EmbeddingOutput]:
    return llm.embed(texts, use_tqdm=False)


def _single(llm: LLM, texts: Texts) -> list[EmbeddingOutput]:
    return [output for text in texts for output in llm.embed([text], use_tqdm=False)]


def _texts(random: Random, number: int, tokens: Sequence[int]) -> Texts:
    return [[random.randrange(MAX_TOKEN) for _ in range(random.randint(*tokens))] for _ in range(number)]


def _difference(first: Sequence[float], second: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(first, second, strict=True))


def summarize(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the medians of the speeds and of their ratio, and the greatest difference of the embeddings."""
    return {
        "ratio": median(each["at_once"] / each["single"] for each in rounds),
        "at_once": median(each["at_once"] for each in rounds),
        "single": median(each["single"] for each in rounds),
        "greatest_difference": max(each["difference"] for each in rounds),
    }


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"one text after the other: {result['single']:.0f} tokens/s"
    yield f"{result['texts']} texts at once: {result['at_once']:.0f} tokens/s, {result['ratio']:.2f} times"
    yield f"greatest difference of a number of the embeddings: {result['greatest_difference']:.1e}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
