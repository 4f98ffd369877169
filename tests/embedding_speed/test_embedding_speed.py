"""embedding_speed: both ways give the same embeddings, in this process and over HTTP, and the report has the ratio."""

import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from embedding_speed.__main__ import main, summarize
from support_models import save_tiny
from support_server import real_server

SHORT = ["--texts", "3", "--rounds", "1", "--tokens", "4", "20"]


def test_the_ratio_is_the_median_of_the_rounds_own() -> None:
    rounds = [
        {"at_once": at_once, "single": single, "difference": difference}
        for at_once, single, difference in ((200.0, 100.0, 0.0), (90.0, 30.0, 0.01), (50.0, 50.0, 0.0))
    ]
    assert summarize(rounds) == {"ratio": 2, "at_once": 90, "single": 50, "greatest_difference": 0.01}


def test_an_engine_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chairlift:random", *SHORT, "--json", str(tmp_path / "report.json")]) == 0
    document = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert (document["texts"], document["tokens"], len(document["rounds"])) == (3, [4, 20], 1)
    assert document["ratio"] > 0 and document["greatest_difference"] < 1e-5
    assert "3 texts at once" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["m", "--url", "http://h"], ["--url", "https://h"], ["--url", "http://h/v1"]])
def test_an_address_that_would_be_read_otherwise_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


def test_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with real_server() as server:
        for _ in "12":  # the second run must not use what the first one has computed
            assert main(["--url", server.url, *SHORT]) == 0
        assert "3 texts at once" in capsys.readouterr().out
        metrics = httpx.get(f"{server.url}/metrics").text
        cached = [line for line in metrics.splitlines() if line.startswith("chairlift_prefix_cached_tokens_total")]
        assert cached and all(float(line.split()[-1]) == 0 for line in cached)
    with pytest.raises(SystemExit, match="does not answer"):
        main(["--url", server.url, *SHORT])


PEER = f"""#!{sys.executable}
import json, sys
for line in sys.stdin:
    texts = json.loads(line)
    embeddings = [[float(sum(text))] * 64 for text in texts]
    print(json.dumps({{"embeddings": embeddings, "seconds": 1e-3 * len(texts)}}), flush=True)
    assert sys.argv[2:] == [sys.argv[2], "float32"]
"""


def test_the_same_texts_are_embedded_by_sentence_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, folder = tmp_path / "python", save_tiny("llama", tmp_path / "model")
    peer.write_text(PEER)
    peer.chmod(0o755)
    words = [str(folder), *SHORT, "--dtype", "float32", "--against", str(peer), "--json", str(tmp_path / "report.json")]
    assert main(words) == 1, "the stand-in has other embeddings"
    document = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    ((each,), found) = document["rounds"], document
    assert each["peer_at_once"] == pytest.approx(each["peer_single"]), "by the seconds of the peer itself"
    assert found["single_against_peer"] == each["single"] / each["peer_single"]
    assert "times sentence-transformers" in capsys.readouterr().out
    peer.write_text("#!/bin/sh\n")
    with pytest.raises(SystemExit, match="sentence-transformers does not answer"):
        main(words)
    with pytest.raises(SystemExit):
        main(["chairlift:random", "--against", str(peer)])
