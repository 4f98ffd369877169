"""langchain-tests' standard tests of ChatOpenAI and OpenAIEmbeddings in front of a real server.

Every feature is claimed, none is left out. ChatOpenAI is tested with chat completions and with the Responses API.

`make test-contract` runs them (see tools/external_suites); a plain run of the tests does not collect this file. What
does not pass stands in tools/external_suites/expected_failures.toml.
"""

import os
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

OPTIONS = {"api_key": "none", "temperature": 0, "max_tokens": 256, "stream_usage": True}
"""Makes the client ask for the usage of a stream: without it, only OpenAI's own server gets that option."""


@pytest.fixture(autouse=True)
def no_web(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give some bytes to the tests that fetch a picture, a document or a sound from the web."""

    def some(url: str, **options: Any) -> httpx.Response:
        return httpx.Response(200, content=b"some bytes", request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", some)


@pytest.fixture(scope="module")
def vcr_cassette_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Let what is recorded be recorded anew each time."""
    return str(tmp_path_factory.mktemp("cassettes"))


class Claims:
    """What is said of model and server: that they can do everything."""

    supports_json_mode = True
    supports_image_inputs = True
    supports_image_urls = True
    supports_pdf_inputs = True
    supports_audio_inputs = True
    supports_video_inputs = True
    supports_anthropic_inputs = True
    supports_image_tool_message = True
    supports_pdf_tool_message = True
    enable_vcr_tests = True
    chat_model_class = ChatOpenAI


class TestUnit(Claims, ChatModelUnitTests):
    chat_model_params = {"model": "chairlift:demo", "base_url": "http://localhost:8000/v1", "api_key": "none"}  # noqa: RUF012

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        environ = {"OPENAI_API_KEY": "a key", "OPENAI_API_BASE": "http://localhost:8000/v1"}
        wanted = {"openai_api_key": "a key", "openai_api_base": "http://localhost:8000/v1"}
        return environ, {"model": "chairlift:demo"}, wanted


class TestIntegration(Claims, ChatModelIntegrationTests):
    supported_usage_metadata_details = {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}  # noqa: RUF012

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": os.environ["CHAIRLIFT_SUITE_MODEL"], "base_url": os.environ["CHAIRLIFT_SUITE_URL"], **OPTIONS}

    @property
    def model_override_value(self) -> str:
        return os.environ["CHAIRLIFT_SUITE_OTHER"]

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        """Ask the same twice: the second time most of it is in the cache."""
        model, long = ChatOpenAI(**self.chat_model_params), "A chairlift never stops. " * 20
        model.invoke(long)
        if not stream:
            message = model.invoke(long)
        else:
            message = AIMessageChunk("")
            for chunk in model.stream(long):
                message = message + chunk
        assert message.usage_metadata is not None
        assert message.usage_metadata["input_token_details"]["cache_read"] >= 16
        return message


class TestResponses(TestIntegration):
    """The same with the Responses API."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestEmbeddings(EmbeddingsIntegrationTests):
    embeddings_class = OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["CHAIRLIFT_SUITE_MODEL"], "base_url": os.environ["CHAIRLIFT_SUITE_URL"],
            "api_key": "none", "check_embedding_ctx_length": False,
        }  # fmt: skip


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    embeddings_class = OpenAIEmbeddings
    embedding_model_params = {"model": "chairlift:demo", "base_url": "http://localhost:8000/v1", "api_key": "none"}  # noqa: RUF012
