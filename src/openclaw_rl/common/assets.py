"""Location of the files that ship with the package."""

from pathlib import Path

ASSETS = Path(__file__).parent.parent / "assets"
