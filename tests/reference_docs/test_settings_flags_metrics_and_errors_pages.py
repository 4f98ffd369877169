"""settings_page, flags_page, metrics_page, errors_page: each declared setting, flag, metric and error is there."""

from chairlift.cli.settings import settings
from chairlift.cli.settings.foreign_flag_table import FOREIGN_FLAGS, SAME_NAMES
from chairlift.core import errors
from chairlift.observability.metrics import METRICS, Metrics
from reference_docs.settings_flags_metrics_and_errors_pages import errors_page, flags_page, metrics_page, settings_page


def rows(page: str) -> dict[str, list[str]]:
    """Return each table row's cells by the first cell that has a name in backticks."""
    result = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and "---" not in line and "`" in line:
            result[next(cell for cell in cells if "`" in cell)] = cells
    return result


def test_every_setting_has_its_four_names_and_its_default() -> None:
    page = settings_page()
    for title, group in settings.GROUPS:
        assert f"\n## {title}\n" in page
        for setting in group:
            assert f"`{setting.flag}` | `{setting.variable}`" in page
    found = rows(page)
    assert found["`port`"][1:5] == ["`--port`", "`CHAIRLIFT_PORT`", "an integer", "`8000`"]
    assert found["`drain_timeout`"][3] == "seconds" and found["`target_itl_ms`"][3] == "milliseconds"
    assert (
        found["`temperature`"][4] == "the model's, else 1"
        and found["`overlap`"][4] == "true on a CUDA device, else false"
    )
    assert found["`tenant_requests_per_minute`*"][4] == "no limit"
    assert "list of text" in found["`served_model_name`"]


def test_every_flag_of_another_server_is_there_with_what_happens_to_it() -> None:
    page = flags_page()
    found = rows(page)
    assert len(found) == len({row.flags for row in FOREIGN_FLAGS})
    for row in FOREIGN_FLAGS:
        assert ", ".join(f"`{flag}`" for flag in row.flags) in found, row.flags
    assert found["`--max-num-seqs`"][1:3] == ["vLLM", "`--max-running-requests`"]
    assert found["`--disable-radix-cache`"][2] == "`--enable-prefix-caching` to `false`"
    assert found["`--schedule-policy`"][2] == "`--scheduling-policy`; `fcfs` is `fifo`, `lpm` is `cache_aware`"
    assert found["`--max-logprobs`"][2] == "`0` to `20`"
    assert all(f"`{flag}`" in page for flag in SAME_NAMES)


def test_every_metric_is_there_under_the_name_that_prometheus_sees() -> None:
    found = rows(metrics_page())
    assert len(found) == len(METRICS)
    served = {
        line.split()[2]
        for line in Metrics(frozenset(METRICS)).render().decode().splitlines()
        if line.startswith("# TYPE")
    }
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
