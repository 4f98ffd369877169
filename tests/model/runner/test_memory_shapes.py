"""Memory shapes: sizes under given options equal the fields of the model config."""

from dataclasses import fields

from chairlift.model.config.device_option import pick_device
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.loading.tiny_model import tiny_model
from chairlift.model.runner.step_memory_estimate import memory_shapes


def test_each_size_is_the_models_or_the_options_own() -> None:
    model, config = tiny_model(seed=0, dtype="float32", device=pick_device("cpu"), max_model_len=None)
    options = RunnerConfig(block_size=8, max_batch_tokens=77, max_running_requests=5)
    pool, step = memory_shapes(options, config, config.layer_groups, 99)
    for shape in (pool, step):
        for spec in fields(shape):
            for source in (config, options):
                if hasattr(source, spec.name) and spec.name != "max_model_len":
                    assert getattr(shape, spec.name) == getattr(source, spec.name), spec.name
    assert (pool.max_model_len, step.max_model_len, pool.itemsize, step.itemsize) == (99, 99, 4, 4)
    assert step.windows == model.groups.windows
    assert pool.groups == len(model.groups.windows) and pool.page_width == model.groups.page_width
