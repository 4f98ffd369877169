"""with_files_folder: each port has its own folder in the user's state folder, unless the settings name one."""

from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.default_files_folder import with_files_folder


@pytest.mark.parametrize(
    ("options", "environ", "folder"),
    [
        ({}, {"XDG_STATE_HOME": "/state"}, "/state/chairlift/files-8000"),
        ({"port": 81}, {"XDG_STATE_HOME": "/state"}, "/state/chairlift/files-81"),
        ({"port": 81}, {}, str(Path.home() / ".local/state/chairlift/files-81")),
        ({"port": 0}, {}, None), ({"port": 0, "files_folder": "x"}, {}, "x"), ({"files_folder": "x"}, {}, "x"),
    ],
)  # fmt: skip
def test_the_folder(options: dict[str, Any], environ: dict[str, str], folder: str | None) -> None:
    before = dict(options)
    assert with_files_folder(options, environ) == {**options, **({} if folder is None else {"files_folder": folder})}
    assert options == before
