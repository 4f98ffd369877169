"""model_flops.py: operations and bytes of a model are counted exactly."""

from chairlift.bench.workload.workload import WorkloadRequest
from cpu_roofline.model_flops import Shape, flops

CONFIG = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def make_request(prompt: int, output: int) -> WorkloadRequest:
    return WorkloadRequest(at=0.0, prompt_token_ids=tuple(range(prompt)), output_tokens=output)


def test_operations_are_counted_as_they_are_done() -> None:
    shape = Shape.of(CONFIG, 2)
    assert (shape.head_dim, shape.products) == (16, ((64, 128), (64, 64), (64, 192), (96, 64)))
    assert shape.layer_weights == 2 * 64 * (128 + 64 + 192 + 96) and shape.head_weights == 6400
    assert shape.kv_bytes(3) == 3 * 2 * 2 * 2 * 32  # tokens, keys and values, bytes, layers, numbers
    # three tokens go through the layers and attend to one, two and three tokens; two of them go through the lm_head
    assert flops(shape, [make_request(2, 2)]) == 3 * 2 * shape.layer_weights + 2 * 2 * 6400 + 6 * 4 * 2 * 64
    assert flops(shape, [make_request(2, 2), make_request(2, 2)]) == 2 * flops(shape, [make_request(2, 2)])
