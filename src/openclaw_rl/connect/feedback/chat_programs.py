"""A function for Open WebUI and an app for Slack, which send thumbs and reactions to the gateway."""

from __future__ import annotations

import json

from openclaw_rl.common.assets import read_asset
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.supervisor import read_key

OPEN_WEBUI_HEADERS = {
    "X-OpenWebUI-Message-Id": "{{MESSAGE_ID}}",
    "X-OpenWebUI-Chat-Id": "{{CHAT_ID}}",
    "X-OpenWebUI-User-Id": "{{USER_ID}}",
}
"""Headers of Open WebUI's connection to the gateway, by which a thumb finds its reply without its text."""
SLACK_MANIFEST = {
    "display_information": {"name": "OpenClaw-RL feedback"},
    "features": {"bot_user": {"display_name": "openclaw-rl-feedback"}},
    "oauth_config": {
        "scopes": {
            "bot": [
                "reactions:read",
                "channels:history",
                "groups:history",
                "im:history",
                "mpim:history",
            ]
        }
    },
    "settings": {
        "event_subscriptions": {
            "request_url": "https://YOUR-HOST/slack/events",
            "bot_events": ["reaction_added", "reaction_removed"],
        }
    },
}
"""Manifest of a Slack app that sees reactions and may read the message under them."""


def open_webui_function(config: Config) -> str:
    """Return the source of the event function for Open WebUI, with the gateway's address and key.

    Raises `OpenClawError` if there is no key yet.
    """
    source = read_asset("feedback/open_webui_function.py")
    values = {"GATEWAY_URL": config.serve.url, "API_KEY": read_key(config)}
    defaults = {"GATEWAY_URL": "http://127.0.0.1:8000", "API_KEY": ""}
    for name, value in values.items():
        line = f'{name} = "{defaults[name]}"\n'
        if source.count(line) != 1:
            raise OpenClawError(f"the packaged function has no line {line.strip()!r}; reinstall it")
        source = source.replace(line, f"{name} = {json.dumps(value)}\n")
    return source


def slack_manifest() -> str:
    """Return the app manifest as JSON."""
    return json.dumps(SLACK_MANIFEST, indent=2)
