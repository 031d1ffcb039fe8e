"""The view of troubles with their cures, and of the settings in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from openclaw_rl.page.cached import current_diagnoses
from openclaw_rl.page.view import View, ViewRequest
from openclaw_rl.settings.load import SECRETS, Config, known_keys
from openclaw_rl.settings.sources_file import read_sources
from openclaw_rl.status.diagnosis_report import format_setting


def collect_troubles(request: ViewRequest) -> Mapping[str, Any]:
    """Return the diagnoses with evidence and cure, and the settings that are not the default."""
    return {
        "troubles": [
            {
                "name": diagnosis.name,
                "evidence": diagnosis.evidence,
                "advice": diagnosis.advice,
                "settings": [
                    f"--set {key}={format_setting(value)}"
                    for key, value in diagnosis.settings.items()
                ],
            }
            for diagnosis in current_diagnoses(request)
        ],
        "settings": changed_settings(request.config),
    }


def changed_settings(config: Config) -> list[dict[str, str]]:
    """Return the settings that are not the default, each with its value and where it came from."""
    sources = read_sources(config)
    default = Config()
    rows = []
    for key in known_keys():
        value = attrgetter(key)(config)
        source = sources.get(key, "")
        if not source and value == attrgetter(key)(default):
            continue
        shown = "(set)" if key in SECRETS else format_setting(value)
        rows.append({"key": key, "value": shown, "source": source or "the program that started it"})
    return rows


VIEWS: Sequence[View] = (
    View(path="/ui/troubles", template="troubles.html", collect=collect_troubles),
)
