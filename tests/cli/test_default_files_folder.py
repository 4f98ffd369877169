"""with_files_folder: each address has its own folder in the user's state folder, unless the settings name one."""

from pathlib import Path
from typing import Any

import pytest

from chairlift.cli import default_files_folder
from chairlift.cli.default_files_folder import with_files_folder
from support_shares import for_each


@for_each(
    ("options", "environ", "folder"),
    [
        ({}, {"XDG_STATE_HOME": "/state"}, "/state/chairlift/files-8000"),
        ({"port": 81}, {"XDG_STATE_HOME": "/state"}, "/state/chairlift/files-81"),
        ({"port": 81}, {}, str(Path.home() / ".local/state/chairlift/files-81")),
        ({"port": 81}, {"XDG_STATE_HOME": "relative"}, str(Path.home() / ".local/state/chairlift/files-81")),
        ({"host": "127.0.0.1"}, {"XDG_STATE_HOME": "/s"}, "/s/chairlift/files-8000"),
        ({"host": "0.0.0.0"}, {"XDG_STATE_HOME": "/s"}, "/s/chairlift/files-8000"),
        ({"host": "10.0.0.1"}, {"XDG_STATE_HOME": "/s"}, "/s/chairlift/files-10.0.0.1-8000"),
        ({"host": "fe80::1%eth0", "port": 9}, {"XDG_STATE_HOME": "/s"}, "/s/chairlift/files-fe80__1_eth0-9"),
        ({"host": "../x"}, {"XDG_STATE_HOME": "/s"}, "/s/chairlift/files-.._x-8000"),
        ({"port": 0}, {}, None), ({"port": 0, "files_folder": "x"}, {}, "x"), ({"files_folder": "x"}, {}, "x"),
    ],
)  # fmt: skip
def test_the_folder(options: dict[str, Any], environ: dict[str, str], folder: str | None) -> None:
    before = dict(options)
    assert with_files_folder(options, environ) == {**options, **({} if folder is None else {"files_folder": folder})}
    assert options == before


def test_a_user_without_a_home_directory_has_a_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(default_files_folder, "user_state_folder", lambda environ: None)
    assert with_files_folder({"port": 81}, {}) == {"port": 81}
    assert [each.levelname for each in caplog.records] == ["WARNING"] and "--files-folder" in caplog.text
