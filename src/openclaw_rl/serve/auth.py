"""Authenticate clients by API keys from the settings, or from a key file that is created at the first start."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from openclaw_rl.errors import ConfigError, RequestError
from openclaw_rl.settings.load import Config

log = logging.getLogger(__name__)

_KEY_PREFIX = "sk-openclaw-"


def scope_of(key: str) -> str:
    """Return the key's id in the store (12 hex digits). Exchanges are never linked across scopes."""
    return blake2b(key.encode("utf-8", "surrogateescape"), digest_size=6, person=b"openclaw-scope").hexdigest()


class ApiKeys:
    """The accepted API keys. A sent key is compared with each of them, in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys_and_scopes = [(k.encode("utf-8", "surrogateescape"), scope_of(k)) for k in keys]

    def authenticated_scope(self, headers: Mapping[str, str]) -> str:
        """Return the scope of the key in `Authorization: Bearer`, else in `x-api-key` or Azure's `api-key`.

        Raises `RequestError` (401).
        """
        # Clients send several headers, and often only one of the keys is for this gateway.
        sent = headers.get("Authorization", "")
        bearer = sent[7:].strip() if sent[:7].lower() == "bearer " else ""
        keys = [key for key in (bearer, headers.get("x-api-key", ""), headers.get("api-key", "")) if key]
        found = next((scope for key in keys if (scope := self._match_key(key)) is not None), None)
        if found is None:
            what = "this API key is unknown" if keys else "no API key was sent"
            raise RequestError(
                f"{what}. Send `Authorization: Bearer <key>` (or `x-api-key: <key>`, or `api-key: <key>`); the key is "
                "in the gateway's file <home>/api_key.",
                code="invalid_api_key",
                status=401,
            )
        return found

    def _match_key(self, key: str) -> str | None:
        raw, found = key.encode("utf-8", "surrogateescape"), None
        for known, scope in self._keys_and_scopes:
            if hmac.compare_digest(known, raw):
                found = scope
        return found


def load_keys(config: Config) -> ApiKeys:
    """Load `serve.api_key`, else the key file. A missing file is created (mode 600). Raises `ConfigError`."""
    if config.serve.api_key:
        return ApiKeys([config.serve.api_key])
    return ApiKeys(read_key_file(config.key_file))


def read_key_file(path: Path) -> list[str]:
    """Read the keys of a file: one per line, as `key` or `name:key`. A line that begins with `#` is a comment."""
    try:
        if not path.exists():
            _make_key_file(path)
        mode = path.stat().st_mode & 0o777
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: the API key file cannot be used ({error}). Make it readable, or set serve.api_key."
        ) from error
    if mode & 0o077:
        log.warning("%s can be read by other users (mode %o); run `chmod 600` on it", path, mode)
    keys = [line.split(":", 1)[-1].strip() for line in lines if line and not line.startswith("#")]
    if not all(keys) or not keys:
        raise ConfigError(f"{path}: expected one key per line, found none. Delete the file to create a new key.")
    return keys


def _make_key_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # another process created the file first; its key is used
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(_KEY_PREFIX + secrets.token_urlsafe(24) + "\n")
