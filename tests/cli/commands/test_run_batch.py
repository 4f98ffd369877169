"""`chairlift run-batch`: real batches on the demo model, killed in the middle, and against a server."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from chairlift.web.batch_files.output_journal import OutputJournal
from support_file_sizes import file_size_limit
from support_server import real_server
from support_shares import FULL

NUM_LINES = 10_000 if FULL else 400
MODEL = "chairlift:demo"


def write_batch(path: Path, count: int, **body: Any) -> Path:
    fields = {"model": MODEL, "max_tokens": 8, "temperature": 1} | body
    path.write_text("".join(
        json.dumps({
            "custom_id": f"r{number}", "method": "POST", "url": "/v1/completions",
            "body": fields | {"prompt": f"Say {number}", "seed": number},
        }) + "\n"
        for number in range(count)
    ))  # fmt: skip
    return path


def texts(path: Path) -> dict[str, str]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({entry["custom_id"] for entry in entries}) == len(entries), "a response was written twice"
    return {entry["custom_id"]: entry["response"]["body"]["choices"][0]["text"] for entry in entries}


def command(batch: Path, output: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "chairlift", "run-batch", "-i", str(batch), "-o", str(output), "-q", *more]


@pytest.mark.full
def test_a_batch_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    batch, output, whole = write_batch(tmp_path / "in", NUM_LINES), tmp_path / "out", tmp_path / "whole"
    for part in (1, 2):
        process = subprocess.Popen(command(batch, output))
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if output.exists() and output.read_bytes().count(b"\n") >= part * NUM_LINES // 4:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.01)
        assert process.wait(20) == -signal.SIGKILL
        done = output.read_bytes().count(b"\n")
        assert part * NUM_LINES // 4 <= done < NUM_LINES
    assert subprocess.run(command(batch, output), check=False, timeout=300).returncode == 0
    found = texts(output)
    assert set(found) == {f"r{number}" for number in range(NUM_LINES)}
    if not FULL:  # the same seed gives the same text, however often the batch was killed
        assert subprocess.run(command(batch, whole), check=False, timeout=300).returncode == 0
        assert texts(whole) == found


@pytest.mark.full
def test_an_interrupt_ends_cleanly_and_the_next_run_goes_on(tmp_path: Path) -> None:
    batch, output = write_batch(tmp_path / "in", 300), tmp_path / "out"
    process = subprocess.Popen(command(batch, output), stderr=subprocess.PIPE, text=True)
    while not (output.exists() and output.read_bytes().count(b"\n") >= 20):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert output.read_bytes().endswith(b"\n")
    assert subprocess.run(command(batch, output), check=False, timeout=120).returncode == 0
    assert len(texts(output)) == 300


def test_every_route_and_an_error_of_one_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch, output = tmp_path / "in", tmp_path / "out"
    requests = {
        "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}),
        "embedding": ("/v1/embeddings", {"input": "Hello"}),
        "rerank": ("/v1/rerank", {"query": "Hello", "documents": ["a", "b"]}),
        "bad": ("/v1/completions", {"prompt": "", "max_tokens": 3}),
        "other model": ("/v1/completions", {"prompt": "a", "model": "gpt-4o"}),
    }
    batch.write_text("".join(
        json.dumps({"custom_id": name, "method": "POST", "url": path, "body": {"model": "mine"} | body}) + "\n"
        for name, (path, body) in requests.items()
    ))  # fmt: skip
    options = ["--served-model-name", "mine", "--engine-mode", "inline"]
    assert main(["run-batch", MODEL, "-i", str(batch), "-o", str(output), *options]) == 1
    statuses = {
        entry["custom_id"]: entry["response"]["status_code"] for entry in map(json.loads, output.open(encoding="utf-8"))
    }
    assert statuses == {"chat": 200, "embedding": 200, "rerank": 200, "bad": 400, "other model": 404}
    assert "5 of 5 requests have responses" in capsys.readouterr().err
    assert main(["run-batch", "-i", str(batch), "-o", str(output)]) == 1  # nothing is left: no model is loaded
    assert "5 of 5 requests have responses" in capsys.readouterr().err


def test_a_full_disk_names_the_file_and_the_next_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch, output = write_batch(tmp_path / "in", 12), tmp_path / "out"
    words = ["run-batch", MODEL, "-i", str(batch), "-o", str(output), "--engine-mode", "inline"]
    with file_size_limit(2000):
        assert main(words) == 1
    done = len(texts(output))
    *_, kept, error = capsys.readouterr().err.splitlines()
    assert 0 < done < 12 and error == f"chairlift: cannot write {output}: file too large"
    assert kept.startswith(f"{done} of 12 requests have responses in {output}, 0 of them an error; this run has ")
    num_tokens = int(kept.partition("this run has ")[2].split()[0])
    assert num_tokens > done and kept.endswith(" tokens. The same command goes on with the others")
    assert main(words) == 0 and len(texts(output)) == 12
    for target, sentence in (("/dev/full", "no space left on device"), (str(tmp_path), "it is a folder")):
        assert main(["run-batch", MODEL, "-i", str(batch), "-o", target, "--engine-mode", "inline"]) in (1, 2)
        assert f"chairlift: cannot write {target}: {sentence}\n" in capsys.readouterr().err


def test_an_interrupt_counts_what_is_done_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch, output, append = write_batch(tmp_path / "in", 6), tmp_path / "out", OutputJournal.append

    def interrupt(journal: OutputJournal, custom_id: str, entry: Any) -> None:
        append(journal, custom_id, entry)
        if len(journal.done) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(OutputJournal, "append", interrupt)
    words = ["run-batch", MODEL, "-i", str(batch), "-o", str(output), "--engine-mode", "inline"]
    assert main([*words, "--max-concurrent", "1"]) == 130
    *_, kept, error = capsys.readouterr().err.splitlines()
    assert kept.startswith(f"2 of 6 requests have responses in {output}, 0 of them an error; this run has ")
    assert error == "chairlift: interrupted" and len(texts(output)) == 2


def test_a_running_server_gives_the_same_responses(tmp_path: Path) -> None:
    batch, output, local = write_batch(tmp_path / "in", 20), tmp_path / "out", tmp_path / "local"
    with real_server(MODEL) as server:
        assert main(["run-batch", "--url", server.url, "-i", str(batch), "-o", str(output), "-q"]) == 0
    assert main(["run-batch", MODEL, "-i", str(batch), "-o", str(local), "-q", "--engine-mode", "inline"]) == 0
    assert texts(output) == texts(local) and len(texts(output)) == 20


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "out"], "needs --input"), (["-i", "in"], "needs --output"), (["-i", "in", "-o", "in"], "same file"),
        (["-i", "missing", "-o", "out"], "missing"), (["-i", "in", "-o", "nowhere/out"], "no folder"),
        (["-i", "in", "-o", "out", "--url", "ftp://x"], "--url must begin"),
        ([MODEL, "-i", "in", "-o", "out", "--url", "http://localhost:1"], "cannot be given together"),
        (["-i", "bad", "-o", "out"], "line 1: it is no JSON"),
    ],
)  # fmt: skip
def test_invalid_input_is_named_before_anything_starts(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_batch(tmp_path / "in", 1)
    (tmp_path / "bad").write_text("{\n")
    assert main(["run-batch", *words]) == 2
    assert message in capsys.readouterr().err
    assert not os.path.exists("out") or os.path.getsize("out") == 0
