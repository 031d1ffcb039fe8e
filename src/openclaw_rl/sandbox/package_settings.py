"""Where a build gets Python packages from: this machine's settings of pip, without passwords."""

from __future__ import annotations

import configparser
import contextlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

_PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_SECTIONS = ("global", "install")
# Setting of pip -> the variable of uv for the same.
_SOURCES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
}
# Folders of everything: no setting shows them to a build.
_BROAD = frozenset({"/", "/etc", "/home", "/root", "/usr", "/var", "/tmp", "/opt", "/srv"})
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATE_VARIABLES = (
    "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO",
)  # fmt: skip


def read_package_sources(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the settings of pip that say where packages are, from its files and its variables in `environment`.

    Left out are addresses with a user or a password, as a build runs commands of others, and indexes in a folder of
    this machine, whose pages lead to files elsewhere.
    """
    settings = dict[str, list[str]]()
    for name in _PIP_FILES:
        settings |= _read_file(Path(name).expanduser())
    settings |= _read_variables(environment)
    usable = {name: list(filter(_can_be_given, values)) for name, values in settings.items()}
    return {name: values for name, values in usable.items() if values}


def _read_file(path: Path) -> dict[str, list[str]]:
    parser = configparser.ConfigParser(interpolation=None)
    # pip itself would stop at a file that it cannot read; a build has its own defaults.
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
        parser.read(path, encoding="utf-8")
    places = [(section, name) for section in _SECTIONS for name in _SOURCES]
    present = [place for place in places if parser.has_option(*place)]
    return {name: parser.get(section, name).split() for section, name in present}


def _read_variables(environment: Mapping[str, str]) -> dict[str, list[str]]:
    variables = {name: f"PIP_{name.upper().replace('-', '_')}" for name in _SOURCES}
    names = [name for name in _SOURCES if variables[name] in environment]
    return {name: environment[variables[name]].split() for name in names}


def package_variables(sources: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the variables of pip and uv for these sources, and the certificates of this machine."""
    variables: dict[str, str] = {}
    for setting, values in sources.items():
        variables[f"PIP_{setting.upper().replace('-', '_')}"] = " ".join(values)
        separator = "," if setting == "find-links" else " "
        variables[_SOURCES[setting]] = separator.join(values)
    if "extra-index-url" in sources:
        # As pip does: the best version of all indexes.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if _CERTIFICATES.is_file():
        variables |= dict.fromkeys(_CERTIFICATE_VARIABLES, str(_CERTIFICATES))
    return variables


def local_folders(sources: Mapping[str, list[str]]) -> dict[str, Path]:
    """Return the folders of this machine among the sources, which a build sees: path in the box -> folder."""
    folders: dict[str, Path] = {}
    for value in (one for values in sources.values() for one in values):
        parts = urlsplit(value)
        if parts.scheme:
            continue
        path = Path(parts.path)
        is_narrow = path.is_absolute() and str(path) not in _BROAD
        if is_narrow and path.is_dir() and ".." not in path.parts:
            folders[str(path)] = path
    return folders


def _can_be_given(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return not (parts.username or parts.password or parts.scheme == "file")
    except ValueError:
        return False
