"""Pages made of the code: every setting, metric and error stands on its page once, with what matters of it."""

from pathlib import Path

import pytest

from chairlift.cli.settings import settings
from chairlift.core import errors
from chairlift.observability.metrics import METRICS, Metrics
from reference_docs.__main__ import main
from reference_docs.pages import PAGES, errors_page, metrics_page, settings_page


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of every row by its first cell that has a name, of those without a second header."""
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and "---" not in line and "`" in line:
            found[next(cell for cell in cells if "`" in cell)] = cells
    return found


def test_every_setting_has_its_four_names_and_its_default() -> None:
    page = settings_page()
    for title, group in settings.GROUPS:
        assert f"\n## {title}\n" in page
        for setting in group:
            assert f"`{setting.flag}` | `{setting.environment}`" in page
    found = rows(page)
    assert found["`port`"][1:5] == ["`--port`", "`CHAIRLIFT_PORT`", "an integer", "`8000`"]
    assert found["`drain_timeout`"][3] == "seconds" and found["`target_itl_ms`"][3] == "milliseconds"
    assert found["`temperature`"][4] == "the model's, else 1" and found["`overlap`"][4] == "false"
    assert found["`tenant_requests_per_minute`*"][4] == "no limit"
    assert "list of text" in found["`served_model_name`"]


def test_every_metric_is_there_under_the_name_that_prometheus_sees() -> None:
    found = rows(metrics_page())
    assert len(found) == len(METRICS)
    served = {line.split()[2] for line in Metrics().render().decode().splitlines() if line.startswith("# TYPE")}
    assert {name.strip("`").removesuffix("_total") for name in found} == {
        name.removesuffix("_total") for name in served
    }


def test_every_error_is_there_with_its_status() -> None:
    page = errors_page()
    for name, kind in vars(errors).items():
        if (
            isinstance(kind, type)
            and issubclass(kind, errors.ChairliftError)
            and name not in ("ChairliftError", "RequestRejected")
        ):
            assert f"`{kind.code}`" in page, name
    assert "| 404 | `model_not_found` | no |" in page and "| 429 | `overloaded` | yes |" in page
    assert "| 408 | `timeout` | no |" in page and "| `config_error` | `ConfigError` |" in page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_title_and_says_that_it_is_made(name: str) -> None:
    first, second, third, *rest = PAGES[name]().splitlines()
    assert first.startswith("# ") and second == "" and third.startswith("<!-- Made by `make docs`") and rest[0] == ""
    assert "\n\n\n" not in PAGES[name]()


def test_all_of_them_are_written(tmp_path: Path) -> None:
    assert main(tmp_path) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        name: page() for name, page in PAGES.items()
    }
