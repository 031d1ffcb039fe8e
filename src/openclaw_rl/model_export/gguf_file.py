"""GGUF files of a model folder, by llama.cpp's own converter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.errors import OpenClawError

CONVERTER_NAMES = ("convert_hf_to_gguf.py", "convert-hf-to-gguf.py", "llama-convert-hf-to-gguf")
"""Names of the converter: in a checkout of llama.cpp, in older ones, and as its Python package installs it."""
# Of the last line of a failed converter's error output.
_SHOWN_CHARS = 300


def _installed_converter() -> Path:
    for name in CONVERTER_NAMES:
        program = shutil.which(name)
        if program is not None:
            return Path(program)
    raise OpenClawError(
        f"--gguf needs {CONVERTER_NAMES[0]} of llama.cpp, which is not in PATH. Name the file, or a checkout "
        "of llama.cpp, with --converter"
    )


def find_converter(path: Path | None) -> list[str]:
    """Return the command of the converter: at `path`, a file or a checkout of llama.cpp, else the one in PATH.

    A `.py` file runs under this Python. Raises `OpenClawError` if it is not there.
    """
    if path is None:
        return _command_of(_installed_converter())
    path = path.expanduser()
    candidates = [path / name for name in CONVERTER_NAMES] if path.is_dir() else [path]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise OpenClawError(
            f"--converter {path}: there is no {CONVERTER_NAMES[0]}. Name the file, or a checkout of llama.cpp"
        )
    return _command_of(file)


def check_gguf_target(file: Path) -> Path:
    """Return the absolute path of a file that may be written. Raises `OpenClawError` if it exists."""
    out = file.expanduser().resolve()
    if out.exists():
        raise OpenClawError(f"{file} exists, and nothing is overwritten. Name another file")
    return out


def convert_folder(command: Sequence[str], folder: Path, out: Path) -> None:
    """Convert a model folder into the file `out`, which appears when it is complete. Raises `OpenClawError`."""
    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(
            [*command, str(folder), "--outfile", str(part)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0 or not part.is_file():
            lines = (ended.stderr.strip() or ended.stdout.strip() or "no output").splitlines()
            raise OpenClawError(
                f"{Path(command[-1]).name} did not convert the model (exit code {ended.returncode}): "
                f"{lines[-1][-_SHOWN_CHARS:]}. If a package is missing, install what llama.cpp lists in "
                "requirements/requirements-convert_hf_to_gguf.txt"
            )
        part.rename(out)
    except OSError as error:
        raise OpenClawError(
            f"{out}: cannot be written ({error.strerror}). Name another file"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _command_of(file: Path) -> list[str]:
    return [sys.executable, str(file)] if file.suffix == ".py" else [str(file)]
