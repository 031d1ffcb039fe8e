"""Where a build gets packages from: this machine's settings of pip, apt and npm, without passwords."""

from __future__ import annotations

import configparser
import contextlib
import re
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
_LOCAL_FOLDERS = "/run/packages"
# Settings whose values can be folders; an index in one has pages that lead to files elsewhere.
_FOLDER_SETTINGS = frozenset({"find-links"})
_INDEXES = frozenset({"index-url", "extra-index-url"})
_APT_FOLDER = Path("/etc/apt")
_NPM_FILES = ("/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", "~/.npmrc")
_ADDRESS = re.compile(r"https?://[^\s\"'\]]+")
# What pip, uv and npm use without settings.
_DEFAULT_HOSTS = frozenset(
    {("pypi.org", 443), ("files.pythonhosted.org", 443), ("registry.npmjs.org", 443)}
)
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
    usable = {
        name: [value for value in values if _can_be_given(name, value)]
        for name, values in settings.items()
    }
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
    shown = {str(folder): path for path, folder in local_folders(sources).items()}
    for setting, addresses in sources.items():
        values = [shown.get(one, one) for one in addresses]
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
    """Return the folders of this machine among the sources, which a build sees: path in the box -> folder.

    They are at paths that no layer has: a link of a layer would lead what mounts them elsewhere.
    """
    values = dict.fromkeys(one for values in sources.values() for one in values)
    folders = [Path(one) for one in values if not urlsplit(one).scheme]
    return {f"{_LOCAL_FOLDERS}/{number}": path for number, path in enumerate(folders)}


def source_hosts(sources: Mapping[str, list[str]]) -> frozenset[tuple[str, int]]:
    """Return hosts and ports that packages come from: of these sources, and of the settings of apt and npm."""
    texts = [one for values in sources.values() for one in values]
    addresses = _ADDRESS.findall("\n".join([*texts, *_setting_lines()]))
    places = map(_read_place, addresses)
    return _DEFAULT_HOSTS.union(place for place in places if place is not None)


def _setting_lines() -> list[str]:
    """Return the lines of the settings of apt and npm, without comments."""
    lines = [line for path in _list_settings() for line in _read_lines(path)]
    return [line for line in lines if not line.lstrip().startswith(("#", ";"))]


def _list_settings() -> list[Path]:
    lists = [
        *_APT_FOLDER.glob("sources.list.d/*.list"),
        *_APT_FOLDER.glob("sources.list.d/*.sources"),
    ]
    return [_APT_FOLDER / "sources.list", *lists, *(Path(name).expanduser() for name in _NPM_FILES)]


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _read_place(address: str) -> tuple[str, int] | None:
    """Return host and port of an address, or None if it has none."""
    try:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None


def _can_be_given(setting: str, value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    if parts.scheme or setting not in (*_FOLDER_SETTINGS, *_INDEXES):
        return not (parts.username or parts.password or parts.scheme == "file")
    return setting in _FOLDER_SETTINGS and _is_narrow_folder(Path(value))


def _is_narrow_folder(path: Path) -> bool:
    is_narrow = path.is_absolute() and str(path) not in _BROAD and ".." not in path.parts
    return is_narrow and path.is_dir()
