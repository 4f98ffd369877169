"""OpenVINO's program: precision by dtype, settings, and unique request numbers."""

import sys
from types import ModuleType

import pytest

from chairlift.bench.peers import external_openvino
from support_peers import FAKE_OPENVINO, FAKE_OPENVINO_CORE


@pytest.fixture
def _openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("openvino_genai", FAKE_OPENVINO), ("openvino", FAKE_OPENVINO_CORE)):
        module = ModuleType(name)
        exec(text, module.__dict__)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("_openvino")
@pytest.mark.parametrize(
    ("dtype", "settings", "precision"),
    [("bfloat16", {}, "bf16"), ("float32", {}, "f32"), ("bfloat16", {"precision": "f32"}, "f32")],
)
def test_runs_follow_each_other_and_settings_arrive(dtype: str, settings: dict[str, str], precision: str) -> None:
    all_settings = {"model": "m", "kv_precision": "u8", "max_num_batched_tokens": "64", **settings}
    engine = external_openvino.open_engine({"dtype": dtype, "threads": 2, "settings": all_settings})
    for _ in range(2):
        results = engine.run([{"prompt": [1, 2], "tokens": 3}, {"prompt": [3], "tokens": 1}])
        assert [(len(stamps), count) for stamps, count in results] == [(3, 3), (1, 1)]
    about = engine.about()
    assert about["properties"]["INFERENCE_PRECISION_HINT"] == precision and about["max_num_batched_tokens"] == 64
    assert about["properties"]["KV_CACHE_PRECISION"] == "u8"
    engine.close()
