"""Write faster rules: `PYTHONPATH=tools python -m fast_alert_rules deploy/prometheus/rules FOLDER --speed 60`."""

import argparse
import sys
from pathlib import Path

from fast_alert_rules.speed_up import speed_up


def write_rules(source: Path, target: Path, speed: float) -> None:
    """Write every rule file of a folder into another one."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.glob("*.yml")):
        (target / file.name).write_text(speed_up(file.read_text(encoding="utf-8"), speed), encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="fast_alert_rules", description="Write rules whose times pass faster.")
    parser.add_argument("source", type=Path, help="folder of the rule files")
    parser.add_argument("target", type=Path, help="folder to write to")
    parser.add_argument("--speed", type=float, default=60.0, metavar="X", help="factor by which times pass faster")
    options = parser.parse_args(words)
    write_rules(options.source, options.target, options.speed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
