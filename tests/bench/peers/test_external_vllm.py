"""vLLM's program: settings reach the engine, and each step's new tokens are counted once."""

from pathlib import Path
from types import ModuleType

import pytest

from chairlift.bench.peers import external_vllm
from support_peers import FAKE_VLLM


@pytest.fixture
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    exec(FAKE_VLLM, module.__dict__)
    monkeypatch.setitem(__import__("sys").modules, "vllm", module)
    for name in ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")


@pytest.mark.usefixtures("_vllm")
def test_tokens_are_counted_once_and_settings_arrive(tmp_path: Path) -> None:
    settings = {"quantization": "int8", "max_num_batched_tokens": "99", "max_num_seqs": "3"}
    task = {"model": "m", "dtype": "bfloat16", "cpus": [0], "longest": 300, "settings": settings}
    engine = external_vllm.open_engine(task)
    results = engine.run([{"prompt": [1, 2], "tokens": 5}, {"prompt": [3], "tokens": 2}])
    assert [(len(stamps), count) for stamps, count in results] == [(3, 5), (1, 2)], "two tokens a step"
    about = engine.about()
    assert (about["quantization"], about["max_num_seqs"], about["dtype"]) == ("int8", 3, "bfloat16")
    engine.close()
