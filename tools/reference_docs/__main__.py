"""Write the reference pages: `make docs` runs `PYTHONPATH=tools python -m reference_docs docs`."""

import sys
from pathlib import Path

from reference_docs.pages import PAGES


def main(folder: Path) -> int:
    """Write every page into a folder; returns the exit code."""
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
