"""What a rejected command line prints."""

import pytest


def rejection_sentence(capsys: pytest.CaptureFixture[str], exit_code: int) -> str:
    """Return the one sentence of a command that was rejected with this exit code."""
    assert exit_code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("chairlift: ")
    return err.removeprefix("chairlift: ").rstrip("\n")
