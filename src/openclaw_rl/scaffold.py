"""A new method to begin with: a folder that runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from openclaw_rl.errors import ConfigError

_TEMPLATES = Path(__file__).parent / "assets" / "method"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 60


def new_method(name: str, into: Path) -> list[Path]:
    """Write `into`/`name`: README, script, settings, loss and rollout. Returns the files.

    Raises `ConfigError` for a name that is no plain word, or a folder that is there: nothing is ever overwritten.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"new-method {name!r}: expected at most {_LONGEST} small letters and digits, words joined by -, "
            "e.g. my-method"
        )
    folder = into.expanduser() / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder} is there already, and nothing is overwritten. Choose another name.") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}). Choose another --into.") from None
    return [_write(template, folder, name) for template in sorted(_TEMPLATES.iterdir())]


def _write(template: Path, folder: Path, name: str) -> Path:
    """A script may be run as it is."""
    snake = name.replace("-", "_")
    file = folder / template.name.removesuffix(".txt").replace("SNAKE", snake)
    text = template.read_text(encoding="utf-8").replace("SNAKE", snake).replace("NAME", name)
    file.write_text(text, encoding="utf-8")
    if file.suffix == ".sh":
        file.chmod(0o755)
    return file
