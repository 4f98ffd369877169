"""`chairlift fleet` whose replicas are servers over fake engines, for tests: `python fleet_main.py [options]`.

The variable THRESHOLDS of the environment has settings of ThresholdConfig as JSON.
"""

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from chairlift.autoscaler.config import ThresholdConfig
from chairlift.cli import autoscaler_options, fleet_clusters
from chairlift.cli.main import main
from chairlift.cluster.local.local_config import LocalConfig

REPLICA = (sys.executable, str(Path(__file__).with_name("fleet_replica.py")))

local_config = fleet_clusters.local_config


def fake_config(options: Any, folder: Path) -> LocalConfig:
    """Return the config of the fleet, with another program and short delays."""
    return replace(local_config(options, folder), command=REPLICA, stop_timeout=10.0, first_restart=0.05)


if __name__ == "__main__":
    fleet_clusters.local_config = fake_config
    thresholds = json.loads(os.environ.get("THRESHOLDS", "{}"))
    autoscaler_options.ThresholdConfig = partial(ThresholdConfig, **thresholds)  # type: ignore[assignment, misc]
    sys.exit(main(["fleet", *sys.argv[1:]]))
