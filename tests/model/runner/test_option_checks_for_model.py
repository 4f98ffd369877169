"""check_start: finds what cannot work without torch, before any weight is read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ConfigError, ModelError
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.option_checks_for_model import check_start
from chairlift.model.runner.torch_runner import TorchRunner
from support_bridged_models import save_bridged
from support_checkpoints import PUBLISHED


def header_length(num_bytes: int) -> bytes:
    return num_bytes.to_bytes(8, "little")


@pytest.fixture(params=["Llama-3.2-1B", "Qwen2.5-0.5B"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a published config.json and a file of weights without any tensor."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[request.param]), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(header_length(2) + b"{}")
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"device": "cuda:1"},
        {"device": "mps"},
        {"num_blocks": 3},
        {"num_blocks": 4, "max_model_len": 65},
        {"max_memory": 0.1},
        {"max_memory": 10**9},
    ],
)
def test_valid_options_pass_without_reading_the_weights(folder: Path, options: dict[str, Any]) -> None:
    check_start(folder, RunnerConfig(**options))
    check_start(None, RunnerConfig(**options))


def test_8_bit_floats_are_refused_for_transformers_modules_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = save_bridged("starcoder2", tmp_path)
    check_start(folder, RunnerConfig())
    with pytest.raises(
        ConfigError, match="'fp8': Starcoder2ForCausalLM is computed by transformers' modules"
    ) as caught:
        check_start(folder, RunnerConfig(quantization="fp8"))
    with pytest.raises(ConfigError) as later:
        TorchRunner(RunnerConfig(model=str(folder), quantization="fp8", device="cpu")).start()
    assert later.value.message == caught.value.message


def test_memory_for_the_heads_that_a_model_of_transformers_really_has_is_enough(tmp_path: Path) -> None:
    folder = save_bridged("falcon", tmp_path)  # one key/value head; config.json does not say so
    options = RunnerConfig(model=str(folder), max_memory=40_000, max_model_len=32, max_running_requests=1, device="cpu")
    check_start(folder, options)
    runner = TorchRunner(options)
    assert runner.start().num_blocks == 2
    runner.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 4, "max_model_len": 66}, "num_blocks is 4, a request of max_model_len 66 tokens needs 5"),
        ({"num_blocks": 9, "max_model_len": 16 * 9 + 2, "block_size": 16}, "or set max_model_len to 145 or less"),
        ({"max_model_len": 10**6}, "max_model_len is 1000000, the model's limit is "),
        ({"max_memory": 1000}, "max_memory is 1000 bytes, one sequence needs at least 3 blocks of "),
        (
            {"max_memory": 9000, "tensor_parallel_size": 2, "device": "cpu"},
            "bytes on each of 2 ranks, which are ",
        ),
        ({"dtype": "int4"}, "dtype 'int4' is unknown"),
        ({"device": "gpu"}, "device 'gpu' is unknown; known are auto, cpu, cuda, mps"),
        ({"device": "cuda:x"}, "device 'cuda:x' is unknown; known are"),
        ({"device": ""}, "device '' is unknown; known are"),
    ],
)
def test_an_option_that_cannot_work_is_named(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_start(folder, RunnerConfig(**options))
    assert message in caught.value.message and caught.value.details["option"] in options


def test_the_models_own_limit_counts_where_full_length_is_needed(folder: Path) -> None:
    limit = json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    with pytest.raises(ConfigError, match=f"a request of max_model_len {limit} tokens needs {limit // 16}"):
        check_start(folder, RunnerConfig(num_blocks=limit // 16 - 1), needs_full_length=True)
    check_start(folder, RunnerConfig(num_blocks=limit // 16), needs_full_length=True)


def test_missing_weights_are_found(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        check_start(folder, RunnerConfig())


@pytest.mark.parametrize("content", [
    b"", b"short", header_length(99) + b"{}", header_length(2**63), header_length(2) + b"[]", header_length(2) + b"{x",
    header_length(28) + b'{"w":{"data_offsets":[0,8]}}' + b"1234567", header_length(15) + b'{"w": {"a": 1}}',
], ids=["empty", "short", "half a header", "huge header", "list", "no JSON", "half a tensor", "no ends"])  # fmt: skip
def test_truncated_weights_are_found_before_torch_is_loaded(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated or not a safetensors file: it"):
        check_start(folder, RunnerConfig())


def test_the_check_loads_no_torch() -> None:
    code = "import sys, chairlift.model.runner.option_checks_for_model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
