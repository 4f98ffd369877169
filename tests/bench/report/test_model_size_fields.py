"""model_shape: the sizes that config.json gives, and None where there is no config that can be read."""

import json
from pathlib import Path

from chairlift import demo
from chairlift.bench.report.model_size_fields import model_shape
from chairlift.llm.builtin_models import DEMO, RANDOM
from support_gguf_models import write_gguf
from support_models import VOCAB_SIZE


def test_a_shape_is_what_the_config_says(tmp_path: Path) -> None:
    config = {"hidden_size": 8, "vocab_size": 9, "torch_dtype": "float32", "_name_or_path": "/home/x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_shape(str(tmp_path)) == {"vocab_size": 9, "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 1, "text_config": {"hidden_size": 8}}))
    assert model_shape(str(tmp_path)) == {"hidden_size": 8}
    (tmp_path / "config.json").write_text("{")
    assert model_shape(str(tmp_path)) is None
    assert model_shape("owner/never-fetched") is model_shape(RANDOM) is None
    assert model_shape(None) == model_shape(DEMO) == model_shape(str(demo.FOLDER))
    assert model_shape("no/such/folder/at/all") is None


def test_a_gguf_file_has_the_sizes_of_its_metadata(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "qwen3", lambda _: "Q8_0")
    found = model_shape(str(tmp_path / "a.gguf"))
    assert found is not None and (found["hidden_size"], found["vocab_size"]) == (256, VOCAB_SIZE)
