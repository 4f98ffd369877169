"""user_state_folder: the user's own choice, the usual folder, or none."""

from pathlib import Path

import pytest

from chairlift.cli.user_state_folder import user_state_folder


@pytest.mark.parametrize("value", [None, "", "relative/folder", "./x"])
def test_the_usual_folder_unless_an_absolute_one_is_named(value: str | None) -> None:
    environ = {} if value is None else {"XDG_STATE_HOME": value}
    assert user_state_folder(environ) == Path.home() / ".local/state"
    assert user_state_folder({"XDG_STATE_HOME": "/state"}) == Path("/state")


def test_a_user_without_a_home_directory_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user number that no list of users has."""
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert user_state_folder({}) is None and user_state_folder({"XDG_STATE_HOME": "/state"}) == Path("/state")
