"""redacted_model, shown_command, shown_options: models, commands and options are shown without folders."""

from pathlib import Path

from chairlift.bench.report.redaction import redacted_model, shown_command, shown_options
from chairlift.llm.builtin_models import DEMO, RANDOM
from support_source_tree import ROOT


def test_a_model_is_named_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "smol").mkdir()
    assert redacted_model(str(tmp_path / "smol")) == "smol"
    assert redacted_model("owner/name") == "owner/name"
    assert redacted_model(None) == DEMO and redacted_model(RANDOM) == RANDOM


def test_a_command_is_shown_without_folders() -> None:
    words = ["chairlift", "bench", str(ROOT / "tests"), "--json", str(ROOT / "new.json"), f"--plot={ROOT}/new.png"]
    assert shown_command(words) == "chairlift bench tests --json new.json --plot=new.png"
    kept = [
        "owner/name",
        "--workload",
        "w1",
        "--compare",
        "batching=mixed,static",
        "--tenants",
        "a=10,b=1",
        "--rate",
        "0.5",
    ]
    assert shown_command(kept) == " ".join(kept)
    assert shown_command(["~/models/x", "./a b"]) == "x 'a b'"
    settings = [
        "--peer",
        "vllm.python=/venvs/vllm/bin/python",
        "--peer",
        "llama.cpp@q8.model=~/gguf/x.gguf",
        "--peer",
        "a.b=c",
    ]
    assert shown_command(settings) == "--peer vllm.python=python --peer llama.cpp@q8.model=x.gguf --peer a.b=c"


def test_options_are_shown_without_folders() -> None:
    assert shown_options({"profile": "/var/x.json", "max_memory": 0.5, "dtype": "auto"}) == {
        "profile": "x.json", "max_memory": 0.5, "dtype": "auto",
    }  # fmt: skip
