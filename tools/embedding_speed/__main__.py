"""`python -m embedding_speed`: measures embeddings of many texts at once against one text after the other.

Each round embeds new texts in both ways, in random order, and compares the embeddings. No text shares a prefix of a
block with another, so the prefix cache does not help either. The engine runs in this process, or behind a server that
is running already (--url). With --against, sentence-transformers embeds the same texts in both ways, too.
"""

import argparse
import base64
import http.client
import secrets
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import orjson

from chairlift import LLM
from chairlift.bench.report import environment, report, report_output

Texts = list[list[int]]
Embed = Callable[[Texts], list[Sequence[float]]]
Timed = Callable[[Texts], tuple[list[Sequence[float]], float]]
"""Returns the embeddings and the seconds that they took."""

Rounds = list[dict[str, float]]

MAX_TOKEN = 256
"""Token ids below this are in every vocabulary."""

BLOCK_SIZE = 16


def main(words: list[str]) -> int:
    """Run the measurement and return the exit code: 0, or 1 where both ways do not give the same embeddings."""
    parser = argparse.ArgumentParser(prog="embedding_speed", description=__doc__)
    parser.add_argument("model", nargs="?", help="a model's folder or name; the embedded demo model by default")
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:8000, instead of a model")
    parser.add_argument("--dtype", default="auto", help="dtype of the engine in this process (%(default)s)")
    parser.add_argument(
        "--against", metavar="PYTHON", help="a Python that has sentence-transformers, for a MODEL folder"
    )
    parser.add_argument("--texts", type=int, default=64, help="texts of a round (%(default)s)")
    parser.add_argument("--tokens", type=int, nargs=2, default=[8, 64], help="fewest and most tokens of a text")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of two measurements (%(default)s)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="greatest difference of a number (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(words)
    source = environment.source()
    if options.url is not None and (options.model is not None or not _is_plain_http(options.url)):
        parser.error("--url takes the address of a server, such as http://127.0.0.1:8000, and no MODEL beside it")
    if options.against is not None and not Path(options.model or "").is_dir():
        parser.error("--against takes the folder of a MODEL, which both engines load")
    if options.against is not None and options.dtype == "auto":
        parser.error("--against takes a --dtype, in which both engines compute")
    name, rounds = (_measure_engine if options.url is None else _measure_server)(options)
    texts = {"model": name, "texts": options.texts, "tokens": options.tokens}
    result = summarize(rounds) | texts | {"dtype": options.dtype, "rounds": rounds}
    document = report.with_environment("chairlift embedding speed", result, source, ["embedding_speed", *words])
    report_output.tell(_table(result), options.json, document, report_output.print_line)
    return 1 if result["greatest_difference"] > options.tolerance else 0


def _is_plain_http(url: str) -> bool:
    address = urllib.parse.urlsplit(url)
    return address.scheme == "http" and bool(address.hostname) and address.path in ("", "/") and not address.query


def _measure_engine(options: argparse.Namespace) -> tuple[str, Rounds]:
    """Measure the engine in this process; returns the model's name and the rounds.

    Its cache is small, so its memory is populated before the first round.
    """
    pooling = None if options.against is None else "mean"
    num_blocks = 2 * options.texts * (options.tokens[1] // BLOCK_SIZE + 1)
    with LLM(options.model, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=options.dtype) as llm:

        def embed(texts: Texts) -> list[Sequence[float]]:
            return [output.embedding for output in llm.embed(texts, pooling=pooling, use_tqdm=False)]

        if options.against is None:
            return Path(options.model or "demo").name, _rounds(embed, llm.flush_cache, options)
        with SentenceTransformers(options.against, options.model, options.dtype) as peer:
            return Path(options.model).name, _rounds(embed, llm.flush_cache, options, peer.embed)


class SentenceTransformers:
    """sentence_transformers_main.py in a process of another Python.

    Owns: the process.
    """

    def __init__(self, python: str, folder: str, dtype: str) -> None:
        script = Path(__file__).with_name("sentence_transformers_main.py")
        command = [python, str(script), str(Path(folder).resolve()), dtype]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> "SentenceTransformers":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def embed(self, texts: Texts) -> tuple[list[Sequence[float]], float]:
        """Return the embedding of each text, and the seconds. Raises SystemExit if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(orjson.dumps(texts) + b"\n")
            self._process.stdin.flush()
            answer = orjson.loads(self._process.stdout.readline())
            return answer["embeddings"], answer["seconds"]
        except (OSError, orjson.JSONDecodeError) as error:
            raise SystemExit(f"sentence-transformers does not answer: {error!r}") from error


def _measure_server(options: argparse.Namespace) -> tuple[str, Rounds]:
    """Measure a server over one connection; returns the model's name and the rounds."""
    address = urllib.parse.urlsplit(options.url)
    with closing(http.client.HTTPConnection(address.hostname or "", address.port)) as connection:

        def call(path: str, body: Mapping[str, Any] | None) -> Any:
            method, data = ("GET", None) if body is None else ("POST", orjson.dumps(body))
            try:
                connection.request(method, path, data, {"content-type": "application/json"})
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise SystemExit(f"{options.url} does not answer: {error!r}") from error
            if response.status != 200:
                raise SystemExit(f"{path} failed with {response.status}: {content.decode(errors='replace')[:500]}")
            return orjson.loads(content)

        model = call("/v1/models", None)["data"][0]["id"]
        run, ways = secrets.token_hex(8), 0

        def end_way() -> None:
            nonlocal ways
            ways += 1

        def embed(texts: Texts) -> list[Sequence[float]]:
            # The salt keeps a way from what the prefix cache has of the way before, or of an earlier run.
            body = {"model": model, "input": texts, "encoding_format": "base64", "cache_salt": f"{run} {ways}"}
            raw = [base64.b64decode(item["embedding"]) for item in call("/v1/embeddings", body)["data"]]
            return [np.frombuffer(each, np.float32).tolist() for each in raw]

        return model, _rounds(embed, end_way, options)


def _rounds(
    embed: Embed, end_way: Callable[[], object], options: argparse.Namespace, peer: Timed | None = None
) -> Rounds:
    """Run all rounds; the first one, which is slower, is left out. `end_way` runs after each way of a round."""
    return [_round(embed, end_way, options, Random(number), peer) for number in range(options.rounds + 1)][1:]


def _round(
    embed: Embed, end_way: Callable[[], object], options: argparse.Namespace, random: Random, peer: Timed | None
) -> dict[str, float]:  # fmt: skip
    """Return the tokens a second of all ways, and the greatest difference of their embeddings."""

    def timed(texts: Texts) -> tuple[list[Sequence[float]], float]:
        started_at = time.perf_counter()
        return embed(texts), time.perf_counter() - started_at

    texts = _texts(random, options.texts, options.tokens)
    apart = [[text] for text in texts]
    ways: dict[str, tuple[Timed, list[Texts]]] = {"at_once": (timed, [texts]), "single": (timed, apart)}
    if peer is not None:
        ways |= {"peer_at_once": (peer, [texts]), "peer_single": (peer, apart)}
    speeds, embeddings = {}, {}
    for name in random.sample(sorted(ways), len(ways)):
        run, calls = ways[name]
        results = [run(each) for each in calls]
        embeddings[name] = [embedding for found, _ in results for embedding in found]
        speeds[name] = sum(map(len, texts)) / sum(seconds for _, seconds in results)
        end_way()
    first = embeddings.pop("at_once")
    pairs = [pair for others in embeddings.values() for pair in zip(first, others, strict=True)]
    return speeds | {"difference": max(_difference(one, other) for one, other in pairs)}


def _texts(random: Random, number: int, tokens: Sequence[int]) -> Texts:
    return [[random.randrange(MAX_TOKEN) for _ in range(random.randint(*tokens))] for _ in range(number)]


def _difference(first: Sequence[float], second: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(first, second, strict=True))


def summarize(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the medians of the speeds and of their ratio, and the greatest difference of the embeddings."""
    summary: dict[str, Any] = {
        "ratio": median(each["at_once"] / each["single"] for each in rounds),
        "at_once": median(each["at_once"] for each in rounds),
        "single": median(each["single"] for each in rounds),
        "greatest_difference": max(each["difference"] for each in rounds),
    }
    if "peer_single" in rounds[0]:
        for way in ("single", "at_once"):
            summary[f"{way}_against_peer"] = median(each[way] / each[f"peer_{way}"] for each in rounds)
            summary[f"peer_{way}"] = median(each[f"peer_{way}"] for each in rounds)
    return summary


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"one text after the other: {result['single']:.0f} tokens/s"
    yield f"{result['texts']} texts at once: {result['at_once']:.0f} tokens/s, {result['ratio']:.2f} times"
    if "peer_single" in result:
        for way, name in (("single", "one text after the other"), ("at_once", "at once")):
            ratio = result[f"{way}_against_peer"]
            yield f"{name}: {ratio:.2f} times sentence-transformers ({result[f'peer_{way}']:.0f} tokens/s)"
    yield f"greatest difference of a number of the embeddings: {result['greatest_difference']:.1e}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
