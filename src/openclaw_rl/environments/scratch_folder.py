"""Names of the folders in which episodes run."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path


def new_scratch_folder(name: str) -> str:
    """Return an absolute path that does not exist, with a random part: no other process has it in its environment."""
    return str(
        Path(tempfile.gettempdir()).resolve() / f"openclaw-{name[:80]}-{uuid.uuid4().hex[:12]}"
    )
