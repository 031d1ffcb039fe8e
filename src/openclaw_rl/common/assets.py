"""Location of the files that ship with the package."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.common.packaged_models import PACKAGED_MODELS

ASSETS = Path(__file__).parent.parent / "assets"
STARTER = "starter"
"""Name of the shipped model in `model.path`."""


def read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def local_model_folder(path: str) -> Path | None:
    """Return the folder of the shipped model, of a packaged one that was fetched, or of a model on this machine.

    None if `path` is another name.
    """
    if path == STARTER:
        return ASSETS / STARTER
    packaged = PACKAGED_MODELS.get(path)
    folder = Path(path).expanduser() if packaged is None else packaged.folder
    return folder if folder.is_dir() else None
