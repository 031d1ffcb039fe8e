"""The libraries of other people in the page: as they were published, with their licences."""

from __future__ import annotations

import hashlib
import json

from openclaw_rl.page.templating import STATIC_FOLDER

OWN = {"chat.js", "page.js", "sign_in.js", "page.css", "icon.svg", "vendored.json"}


def test_the_files_of_others_have_the_recorded_digests() -> None:
    recorded = json.loads((STATIC_FOLDER / "vendored.json").read_text(encoding="utf-8"))
    files = {file.name for file in STATIC_FOLDER.iterdir() if file.is_file()}
    assert files - OWN == set(recorded)
    for name, entry in recorded.items():
        assert hashlib.sha256((STATIC_FOLDER / name).read_bytes()).hexdigest() == entry["sha256"]


def test_each_library_has_its_licence() -> None:
    recorded = json.loads((STATIC_FOLDER / "vendored.json").read_text(encoding="utf-8"))
    packages = {
        entry["package"].partition(" ")[0].removesuffix(".org").lower()
        for entry in recorded.values()
    }
    licences = {file.stem.lower() for file in (STATIC_FOLDER / "licences").iterdir()}
    assert packages == licences


def test_nothing_is_loaded_from_elsewhere() -> None:
    for file in STATIC_FOLDER.glob("*.css"):
        text = file.read_text(encoding="utf-8")
        assert "@import" not in text
        assert "url(" not in text
