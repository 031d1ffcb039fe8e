"""Location of the files that ship with the package."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parent.parent / "assets"
STARTER = "starter"
"""Name of the shipped model in `model.path`."""


def read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def local_model_folder(path: str) -> Path | None:
    """Return the folder of the shipped model or of a model on this machine; None if `path` is neither."""
    folder = ASSETS / STARTER if path == STARTER else Path(path).expanduser()
    return folder if folder.is_dir() else None
