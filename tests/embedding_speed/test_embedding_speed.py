"""embedding_speed: both ways give the same embeddings, in this process and over HTTP, and the report has the ratio."""

from pathlib import Path

import httpx
import msgspec
import pytest

from embedding_speed.__main__ import main, summarize
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
