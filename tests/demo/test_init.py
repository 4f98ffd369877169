"""The embedded demo model: a model folder of the promised size that is in the wheel and that its card describes."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from safetensors import safe_open

from chairlift import demo
from support_shares import FULL
from support_source_tree import PACKAGE, ROOT

MEGABYTE = 1_000_000


def config() -> dict[str, object]:
    found: dict[str, object] = json.loads((demo.FOLDER / "config.json").read_text(encoding="utf-8"))
    return found


def test_it_has_two_to_four_million_parameters_in_bfloat16_and_at_most_8_mb() -> None:
    with safe_open(demo.FOLDER / "model.safetensors", "pt") as weights:  # type: ignore[no-untyped-call]
        tensors = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118
    assert demo.parameters() == sum(tensor.numel() for tensor in tensors)
    assert 2e6 <= demo.parameters() <= 4e6
    assert {str(tensor.dtype) for tensor in tensors} == {"torch.bfloat16"}
    assert (demo.FOLDER / "model.safetensors").stat().st_size <= 8 * MEGABYTE


def test_its_shape_is_a_llama_with_grouped_heads_in_multiples_of_64() -> None:
    made = config()
    assert made["architectures"] == ["LlamaForCausalLM"]
    assert int(str(made["num_key_value_heads"])) < int(str(made["num_attention_heads"]))
    assert not any(int(str(made[name])) % 64 for name in ("hidden_size", "intermediate_size", "head_dim", "vocab_size"))
    assert int(str(made["max_position_embeddings"])) >= 1024


def test_its_card_names_seed_hardware_and_what_lies_beside_it() -> None:
    card = (demo.FOLDER / "README.md").read_text(encoding="utf-8")
    training = json.loads((demo.FOLDER / "training.json").read_text(encoding="utf-8"))
    assert f"seed {training['seed']}" in card and training["hardware"]["cpu"] in card
    for name in ("loss.png", "training.jsonl", "training.json", "examination.json"):
        assert name in card and (demo.FOLDER / name).stat().st_size
    log = [json.loads(line) for line in (demo.FOLDER / "training.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[-1]["step"] == training["steps"] and log[-1]["held_out_loss"] < log[0]["held_out_loss"] / 4
    assert [entry["step"] for entry in log] == sorted({entry["step"] for entry in log})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environ = os.environ if FULL else os.environ | {"CHAIRLIFT_BUILD_KERNELS": "none"}  # which takes half a minute
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_carries_the_package_and_the_model_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    expected = {name for name in sources if "__pycache__" not in name}
    assert names == {name for name in expected if FULL or not name.endswith(".so")}
    assert {"chairlift/demo/model.safetensors", "chairlift/ui/static/index.html"} <= names
    assert wheel.stat().st_size <= 10 * MEGABYTE


@pytest.mark.full
def test_the_unpacked_wheel_answers_offline_with_nothing_else(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "installed"), "HOME": str(tmp_path)}
    code = "import chairlift, sys; print(chairlift.__file__); from chairlift.cli.main import main; sys.exit(main())"
    words = ["generate", "--prompt", "What is the capital of France?"]
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", code, *words]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=120
    )
    where, answer = done.stdout.splitlines()
    assert done.returncode == 0 and where.startswith(str(tmp_path))
    assert answer == "The capital of France is Paris."
    assert done.stderr.splitlines()[0].startswith("no model given: the embedded demo model (3.")
