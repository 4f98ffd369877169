"""load_adapter and drop_adapter of every client: steps go on during a load, errors come back as their own class."""

import threading
from pathlib import Path

import pytest

from chairlift.core.adapter_version import AdapterVersion
from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ConfigError, EngineDead, ModelError
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.ipc.messages import RemoteCall, Submit, decode_reply
from chairlift.engine.runner.base import AdapterInfo, adapter_loader
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import FakeConfig, expected_tokens
from support_adapter_versions import write_adapter
from support_engine import RequestSink, make_request
from support_engine_server import HELLO, ServerHarness
from support_inline import FAKE, WAIT_SECONDS, start_client
from support_process import engine, fake_spec


class SlowLoads(FakeRunner):
    """A FakeRunner whose loads wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__(FAKE)
        self.entered, self.released = threading.Event(), threading.Event()

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        self.entered.set()
        assert self.released.wait(WAIT_SECONDS), "the load was never released"
        return super().load_adapter(number, folder)


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_go_on_while_an_adapter_loads(tmp_path: Path, overlap: bool) -> None:
    runner = SlowLoads()
    client = start_client(runner, overlap=overlap)
    infos: list[AdapterInfo] = []
    loading = threading.Thread(target=lambda: infos.append(client.load_adapter(1, str(write_adapter(tmp_path)))))
    loading.start()
    assert runner.entered.wait(WAIT_SECONDS)
    base = RequestSink()
    client.submit(make_request("base", 9, 5), base)
    assert base.wait().finish_reason is FinishReason.LENGTH and not infos
    runner.released.set()
    loading.join()
    request, sink = make_request("a", 9, 5, adapter=AdapterVersion(1, infos[0].digest)), RequestSink()
    client.submit(request, sink)
    sink.wait()
    assert sink.tokens == expected_tokens(request.prompt_token_ids, request.params, FAKE, adapter=infos[0].digest)
    assert sink.tokens != base.tokens
    client.drop_adapter(1)
    assert runner.adapters.numbers == []
    with pytest.raises(EngineDead, match="does not have the adapter"):
        client.submit(make_request("late", 9, 5, adapter=AdapterVersion(1, "x")), RequestSink())
    client.close()
    with pytest.raises(EngineDead):
        client.load_adapter(2, str(tmp_path))


def test_a_bad_folder_and_a_runner_without_adapters_are_typed_errors(client: InlineClient, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no files"):
        client.load_adapter(1, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="enable_lora") as caught:
        adapter_loader(object())
    assert caught.value.details["option"] == "enable_lora"


@pytest.mark.usefixtures("children_import_tests")
def test_an_engine_process_loads_and_drops(tmp_path: Path) -> None:
    folder = str(write_adapter(tmp_path / "a"))
    with engine(fake_spec()) as client:
        info = client.load_adapter(1, folder)
        request = make_request("r", (1, 2, 3), 5, adapter=AdapterVersion(1, info.digest))
        sink = RequestSink()
        client.submit(request, sink)
        sink.wait()
        assert sink.tokens == expected_tokens((1, 2, 3), request.params, FakeConfig(), adapter=info.digest)
        with pytest.raises(ModelError, match="has no files"):
            client.load_adapter(2, str(tmp_path / "missing"))
        client.drop_adapter(1)
        late = RequestSink()
        client.submit(make_request("late", (1, 2), 5, adapter=AdapterVersion(1, info.digest)), late)
        assert type(late.wait().error) is EngineDead


def test_two_clients_use_equal_numbers_and_a_client_that_leaves_frees_its_own(tmp_path: Path) -> None:
    harness = ServerHarness()
    harness.start_engine()
    runner = harness.engine.loop._runner
    assert isinstance(runner, FakeRunner)
    digests = {}
    for name in (b"a", b"b"):
        harness.send(name, HELLO)
        harness.send(name, RemoteCall(1, "load_adapter", (1, str(write_adapter(tmp_path / name.decode(), [name])))))
        digests[name] = decode_reply("load_adapter", harness.wait_for_reply(name, 1).payload).digest
    for name, digest in digests.items():
        request = make_request("same", (1, 2, 3), 5, adapter=AdapterVersion(1, digest))
        harness.send(name, Submit(request))
        harness.wait_for_end(name, "same")
        tokens = [token for output in harness.outputs(name, "same") for token in output.token_ids]
        assert tokens == expected_tokens((1, 2, 3), request.params, FakeConfig(), adapter=digest)
    harness.send(b"a", RemoteCall(2, "load_adapter", (1, str(tmp_path / "a"))))
    assert "in use" in str(harness.wait_for_reply(b"a", 2).error)
    harness.send(b"a", RemoteCall(3, "load_adapter", ("x", 1)))
    assert "arguments" in str(harness.wait_for_reply(b"a", 3).error)
    harness.send(b"a", HELLO)  # its old session ends
    harness.run_until(lambda: runner.adapters.numbers == [2])
    harness.engine.close()
