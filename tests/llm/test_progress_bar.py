"""ProgressBar: a bar on standard error that ends with the right counts, and no output when it is off."""

import pytest

from chairlift.llm.progress_bar import ProgressBar


def test_the_bar_ends_with_all_requests_and_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(2, shown=True) as progress:
        for _ in range(2):
            progress.tokens(30)
            progress.request_done()
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err and "output tok/s" in err


@pytest.mark.parametrize(("total", "shown"), [(2, False), (0, True)])
def test_nothing_is_drawn_when_it_is_not_wanted(capsys: pytest.CaptureFixture[str], total: int, shown: bool) -> None:
    with ProgressBar(total, shown=shown) as progress:
        progress.tokens(5)
        progress.request_done()
    assert capsys.readouterr() == ("", "")


def test_a_failure_leaves_a_bar_that_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with ProgressBar(2, shown=True) as progress:
            progress.request_done()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "1/2" in capsys.readouterr().err
