"""EngineArgs: the options of an LLM as one object, checked by name."""

import pytest

from chairlift import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs
from chairlift.core.errors import ConfigError

SMALL = {"max_model_len": 64, "num_blocks": 40, "dtype": "float32"}


def test_the_arguments_are_attributes_and_make_an_llm() -> None:
    arguments = EngineArgs(model="chairlift:random", enforce_eager=True, **SMALL)
    assert (arguments.model, arguments.max_model_len) == ("chairlift:random", 64)
    with LLM(**vars(arguments)) as llm:
        assert llm._service.client.limits.max_model_len == 64


def test_an_async_llm_starts_from_its_arguments_and_shuts_down() -> None:
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model="chairlift:random", **SMALL))
    assert llm._service.model == "chairlift:random"
    llm.shutdown()


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="did you mean 'max_model_len'"):
        EngineArgs(max_model_length=5)
    with pytest.raises(ConfigError, match="one copy of a model"):
        EngineArgs(pipeline_parallel_size=2)
