"""Asks the policy for a reply, with the standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

# Of a reply.
MAX_TOKENS = 256
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens addresses on this machine, for which no proxy is asked."""


def ask_policy(asked: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Return the text and the id of a reply. `asked`: a request to play. Raises `urllib.error.HTTPError`."""
    body = json.dumps(
        {"model": asked["model"], "messages": list(messages), "max_tokens": MAX_TOKENS}
    ).encode()
    headers = {"Authorization": f"Bearer {asked['api_key']}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{asked['base_url']}/chat/completions", data=body, headers=headers
    )
    with OPENER.open(request, timeout=asked["seconds"]) as answer:
        reply = json.load(answer)
    return str(reply["choices"][0]["message"].get("content") or ""), str(reply["id"])


def ask_context(asked: Mapping[str, Any]) -> int:
    """Return how many tokens fit into a prompt and its reply. Raises `urllib.error.HTTPError`."""
    request = urllib.request.Request(
        f"{asked['base_url']}/models", headers={"Authorization": f"Bearer {asked['api_key']}"}
    )
    with OPENER.open(request, timeout=asked["seconds"]) as answer:
        return int(json.load(answer)["data"][0]["max_model_len"])


def stop_reason(error: urllib.error.HTTPError) -> str:
    """Return which limit of the policy an answer means. Raises the error if it means none."""
    if error.code == 410:
        return "its limit of replies"
    if error.code == 400 and b"context" in error.read():
        return "its context was too long"
    raise error
