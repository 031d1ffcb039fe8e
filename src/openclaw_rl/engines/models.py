"""Where a model's files lie, and in which precision they are to be taken: for programs that read them themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openclaw_rl.config import STARTER


def location(path: str) -> str:
    """`model.path` as another program understands it: a folder where it is one, else the hub id."""
    if path == STARTER:
        return str(Path(__file__).parent.parent / "assets" / "starter")
    folder = Path(path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else path


def dtype(wanted: str, model: str) -> str:
    """As set. A float32 checkpoint stays one: a server's `auto` would round it, and the trainer would differ."""
    if wanted != "auto":
        return wanted
    file = Path(model) / "config.json"
    if not file.is_file():
        return "auto"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return "float32" if (config.get("dtype") or config.get("torch_dtype")) == "float32" else "auto"
