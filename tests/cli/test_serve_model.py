"""serve_model: the engine runs in the process that was launched."""

from typing import Any

import pytest

from chairlift.cli import serve_model as module
from chairlift.cli.command_line import build_parser
from chairlift.cli.serve_model import serve_model


def test_the_launched_process_is_that_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def prepares(model: str | None, engine: dict[str, Any], **options: Any) -> None:
        found.extend((model, engine["engine_mode"], options["launched"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "prepare", prepares)
    launched: Any = object()
    words = ["serve", "chairlift:random"]
    with pytest.raises(KeyboardInterrupt):
        serve_model(build_parser(words).parse_args(words), launched)
    assert found == ["chairlift:random", "process", launched]
