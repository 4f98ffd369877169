"""Tests of resolve, resolve_group."""

import argparse
from typing import Any

from chairlift.cli.settings.resolve_settings import ResolvedSetting, resolve, resolve_group
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.settings import SERVER


class FakeFile:
    """Settings file with these values."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def read(self, setting: Setting) -> tuple[Any, str] | None:
        return (self.values[setting.dest], "f.yaml line 1") if setting.dest in self.values else None


def test_the_flag_wins_over_the_variable_and_the_variable_over_the_file() -> None:
    port = next(setting for setting in SERVER if setting.name == "port")
    environ, file = {"CHAIRLIFT_PORT": "2"}, FakeFile(port=3)
    assert resolve(port, argparse.Namespace(port=1, settings_file=file), environ) == ResolvedSetting(
        1, "flag", "--port"
    )
    assert resolve(port, argparse.Namespace(settings_file=file), environ) == ResolvedSetting(
        2, "environment", "CHAIRLIFT_PORT"
    )
    assert resolve(port, argparse.Namespace(settings_file=file), {}) == ResolvedSetting(3, "file", "f.yaml line 1")
    assert resolve(port, argparse.Namespace(settings_file=None), {"CHAIRLIFT_PORT": ""}) is None
    assert resolve(port, argparse.Namespace(port=0), environ) == ResolvedSetting(0, "flag", "--port")
    assert resolve_group([port], argparse.Namespace(settings_file=file), {}) == {"port": 3}
