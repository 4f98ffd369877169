"""RunnerConfig: survives encoding to bytes and decoding; its invalid values."""

from chairlift.model.config.runner_config import RunnerConfig


def test_what_was_encoded_is_read_back() -> None:
    for config in (
        RunnerConfig(),
        RunnerConfig(model="/m", dtype="float64", device="cpu", block_size=7, num_blocks=9, max_memory=0.5, seed=3),
        RunnerConfig(max_memory=1 << 30, max_model_len=100),
    ):
        assert RunnerConfig.decode(config.encode()) == config
