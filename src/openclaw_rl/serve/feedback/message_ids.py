"""Ids that programs give to the messages which replies become, from their requests' headers."""

from __future__ import annotations

from collections.abc import Mapping

from openclaw_rl.common.assets import read_yaml_asset

MESSAGE_ID_HEADERS: tuple[str, ...] = tuple(read_yaml_asset("feedback/message_ids.yaml")["headers"])


def sent_message_id(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the client's id of the message that the reply becomes, with its header; None if it sent none."""
    for name in MESSAGE_ID_HEADERS:
        value = headers.get(name)
        if value:
            return value, name
    return None
