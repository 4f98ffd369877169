"""A TorchRunner of the tiny model with the driver that makes its plans."""

from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.torch_runner import TorchRunner
from support_plans import DrivenSequence, Driver
from support_sampling import params

GREEDY = params(temperature=0.0)
SEEDED = params(seed=99, temperature=0.9, top_p=0.95, repetition_penalty=1.1, logprobs=2)
PROMPT = [int(byte) for byte in b"One chair passes the platform at every step of the engine."]


def started(model: LoadedModel, seed: int = 0, **options: object) -> tuple[TorchRunner, Driver]:
    runner = TorchRunner(
        RunnerConfig(**{"num_blocks": 400, "max_running_requests": 64, "device": "cpu"} | options), model
    )
    return runner, Driver(runner, runner.start(), seed)


def alone(model: LoadedModel, prompt: list[int], sampling_params: object, count: int = 12) -> DrivenSequence:
    _, driver = started(model)
    sequence = driver.add(prompt, sampling_params)
    driver.generate(sequence, count)
    return sequence
