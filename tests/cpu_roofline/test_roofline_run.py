"""roofline_run.py: the parts of a measurement add up."""

import json
from pathlib import Path

import pytest

from chairlift.bench.workload.generators import generate
from cpu_roofline import roofline_run
from cpu_roofline.model_flops import Shape, flops


@pytest.mark.full
def test_a_turn_adds_up(model: Path) -> None:
    result = roofline_run.measure(str(model), {"dtype": "bfloat16", "quantization": "int8", "num_blocks": 1024})
    config = json.loads((model / "config.json").read_text())
    shape = Shape.of(config, 2)
    offline, single = result["w1"], result["single"]
    assert sum(offline["parts"].values()) == pytest.approx(offline["seconds"])
    assert all(seconds > 0 for seconds in offline["parts"].values()), offline["parts"]
    workload = generate("w1", vocab_size=config["vocab_size"], seed=0)
    assert offline["flops"] == flops(shape, workload.items)
    kv_bytes = shape.kv_bytes(64 + 24 // 2)
    num_weights = shape.layer_weights + shape.head_weights
    # One byte for each weight, scales, and the padding of panels.
    assert num_weights < single["bytes_per_token"] - kv_bytes < 1.6 * num_weights
    assert result["attention"]["bytes_per_layer"] == 32 * 2048 * 2 * 2 * 2 * 32
    for part in (single, result["attention"]):
        assert all(seconds > 0 and floor > 0 for seconds, floor in part["seconds_and_floor"])
