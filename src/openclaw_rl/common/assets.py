"""Location of the files that ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openclaw_rl.common.packaged_models import PACKAGED_MODELS

ASSETS = Path(__file__).parent.parent / "assets"
STARTER = "starter"
"""Name of the shipped model in `model.path`."""


def read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def load_yaml(text: str) -> Any:
    """Parse YAML of plain values. Raises `yaml.YAMLError`, or `ValueError` for an invalid date or number."""
    # Imported here, as `--help` needs the rest of this module.
    import yaml

    # libyaml takes a tenth of the time, but PyYAML can be built without it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(text, loader)


def read_yaml_asset(name: str) -> Any:
    """Return the content of a YAML file of the package."""
    return load_yaml(read_asset(name))


def local_model_folder(path: str) -> Path | None:
    """Return the folder of the shipped model, of a packaged one that was fetched, or of a model on this machine.

    None if `path` is another name.
    """
    if path == STARTER:
        return ASSETS / STARTER
    packaged = PACKAGED_MODELS.get(path)
    folder = Path(path).expanduser() if packaged is None else packaged.folder
    return folder if folder.is_dir() else None
