"""`chairlift fleet` whose replicas are servers over fake engines, for tests: `python fleet_main.py [options]`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from chairlift.cli import fleet_clusters
from chairlift.cli.main import main
from chairlift.cluster.local.local_config import LocalConfig

REPLICA = (sys.executable, str(Path(__file__).with_name("fleet_replica.py")))

local_config = fleet_clusters.local_config


def fake_config(options: Any, folder: Path) -> LocalConfig:
    """Return the config of the fleet, with another program and short delays."""
    return replace(local_config(options, folder), command=REPLICA, stop_timeout=10.0, first_restart=0.05)


if __name__ == "__main__":
    fleet_clusters.local_config = fake_config
    sys.exit(main(["fleet", *sys.argv[1:]]))
