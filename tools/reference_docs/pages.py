"""PAGES: the pages of docs/ that are generated from the code, by file name."""

from collections.abc import Callable, Mapping

from reference_docs.models_page import models_page
from reference_docs.packages import packages_page
from reference_docs.settings_flags_metrics_and_errors_pages import errors_page, flags_page, metrics_page, settings_page

PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page, "flags.md": flags_page, "metrics.md": metrics_page, "errors.md": errors_page,
    "models.md": models_page, "packages.md": packages_page,
}  # fmt: skip


# -- settings ----------------------------------------------------------------------------------------------------------


# -- flags of other servers --------------------------------------------------------------------------------------------


# -- metrics -----------------------------------------------------------------------------------------------------------


# -- errors ------------------------------------------------------------------------------------------------------------
