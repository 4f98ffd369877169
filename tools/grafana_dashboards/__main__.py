"""Write the dashboards: `PYTHONPATH=tools python -m grafana_dashboards deploy/grafana/dashboards`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from grafana_dashboards.dashboard_classes_and_promql import Dashboard
from grafana_dashboards.fleet import FLEET
from grafana_dashboards.replica import REPLICA
from grafana_dashboards.slo import SLO
from grafana_dashboards.tenants import TENANTS

DASHBOARDS: tuple[Dashboard, ...] = (REPLICA, FLEET, TENANTS, SLO)


def files() -> Mapping[str, str]:
    """Return the text of each file by its name."""
    return {f"chairlift-{each.name}.json": json.dumps(each.as_json(), indent=1) + "\n" for each in DASHBOARDS}


def main(folder: Path) -> int:
    """Write every dashboard into a folder; returns the exit code."""
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
