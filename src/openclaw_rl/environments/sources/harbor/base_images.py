"""The systems that stand in for base images where no image can be pulled."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.sandbox.root_layers import RootLayer

_VERSION = re.compile(r"(?:^|python)(\d+\.\d+)")
_PLAIN_IMAGES = frozenset({"", "scratch", "debian", "ubuntu", "buildpack-deps"})
# Image -> a program that it has, and the packages of Debian with it.
_PROGRAMS_OF_IMAGES: Mapping[str, tuple[str, str]] = {
    "node": ("npm", "nodejs npm"),
    "golang": ("go", "golang-go"),
    "rust": ("cargo", "cargo rustc"),
    "gcc": ("g++", "gcc g++ make"),
    "ruby": ("ruby", "ruby-full"),
    "php": ("php", "php-cli"),
    "perl": ("perl", "perl"),
    "openjdk": ("javac", "default-jdk-headless"),
    "eclipse-temurin": ("javac", "default-jdk-headless"),
    "maven": ("mvn", "maven"),
    "r-base": ("R", "r-base"),
}
_INTERPRETERS = (
    ".pyenv/versions/{0}.*/bin/python{0}",
    ".local/share/uv/python/cpython-{0}*/bin/python{0}",
)
_NOT_COPIED = ("__pycache__", "site-packages", "test", "idle_test", "*.a", "*.pyc")
_INTERPRETER_SECONDS = 20.0
_SYSTEM_PYTHON = """
set -e
command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || {
    apt-get update && apt-get install -y --no-install-recommends python3 python3-pip python3-venv
}
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python
command -v pip >/dev/null || printf '#!/bin/sh\\nexec python3 -m pip "$@"\\n' >/usr/local/bin/pip
[ ! -e /usr/local/bin/pip ] || chmod 755 /usr/local/bin/pip
"""
_OWN_PYTHON = """
set -e
ldconfig
/usr/local/bin/python{0} -m ensurepip --upgrade --default-pip >/dev/null
ln -sf python{0} /usr/local/bin/python3
ln -sf python{0} /usr/local/bin/python
"""
_UV = 'ln -sf "$PROGRAMS/uv" "$PROGRAMS/uvx" /usr/local/bin/\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A base image as its name says it. `python`: the version that it has, such as "3.12", or None."""

    reference: str
    name: str
    python: str | None

    @property
    def is_plain(self) -> bool:
        """Whether it is a system without programs of its own."""
        return self.name in _PLAIN_IMAGES

    def setup_command(self, own_python: bool) -> str:
        """Return commands that install what the image has. `own_python`: this version was copied to /usr/local."""
        if self.name in ("python", "uv"):
            python = _OWN_PYTHON.format(self.python) if own_python else _SYSTEM_PYTHON
            return python + (_UV if self.name == "uv" else "")
        if self.name in _PROGRAMS_OF_IMAGES:
            program, packages = _PROGRAMS_OF_IMAGES[self.name]
            return (
                f"command -v {program} >/dev/null || "
                f"{{ apt-get update && apt-get install -y --no-install-recommends {packages}; }}"
            )
        return ""


def read_image(reference: str) -> BaseImage:
    """Return the parts of a reference, such as `public.ecr.aws/docker/library/python:3.13-slim@sha256:...`."""
    path, _, tag = reference.partition("@")[0].rpartition("/")[2].partition(":")
    name = path.lower()
    version = _VERSION.search(tag) if name in ("python", "uv") else None
    return BaseImage(reference=reference, name=name, python=version[1] if version else None)


@dataclass(frozen=True, slots=True)
class OwnPython:
    """An installation of Python of this machine outside of the system, which builds can have a copy of."""

    version: str
    prefix: Path

    @property
    def digest(self) -> str:
        program = self.prefix / "bin" / f"python{self.version}"
        status = program.stat()
        text = f"{self.prefix} {status.st_size} {status.st_mtime_ns}"
        return hashlib.sha256(text.encode()).hexdigest()

    def copy_to(self, layer: RootLayer) -> None:
        """Copy the interpreter and its library, without installed packages, to /usr/local of a layer."""
        local = layer.usr / "local"
        library = f"lib/python{self.version}"
        shutil.copytree(
            self.prefix / library,
            local / library,
            symlinks=True,
            ignore=shutil.ignore_patterns(*_NOT_COPIED),
        )
        (local / library / "site-packages").mkdir(exist_ok=True)
        for path in (self.prefix / "lib").glob("libpython*.so*"):
            shutil.copy2(path, local / "lib" / path.name, follow_symlinks=False)
        headers = self.prefix / "include" / f"python{self.version}"
        if headers.is_dir():
            shutil.copytree(headers, local / "include" / headers.name, symlinks=True)
        (local / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(
            (self.prefix / "bin" / f"python{self.version}").resolve(),
            local / "bin" / f"python{self.version}",
        )


def find_own_python(version: str) -> OwnPython | None:
    """Return an installation of a version of Python outside of /usr, or None."""
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    if sys.version.startswith(f"{version}."):
        candidates.append(Path(sys.executable))
    for pattern in _INTERPRETERS:
        candidates += sorted(Path.home().glob(pattern.format(version)))
    for program in candidates:
        prefix = _ask_prefix(program, version)
        if prefix is not None and not prefix.is_relative_to("/usr"):
            return OwnPython(version, prefix)
    return None


def _ask_prefix(program: Path, version: str) -> Path | None:
    """Return the folder of an installation that has this version and can install pip, or None."""
    question = "import ensurepip, ssl, sys; print(sys.base_prefix, *sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [program, "-I", "-c", question],
            capture_output=True,
            text=True,
            timeout=_INTERPRETER_SECONDS,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(answer[0]) if answer[1:] == version.split(".") else None
