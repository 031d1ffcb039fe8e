"""Ids of conversation and person under the names that front ends use."""

from __future__ import annotations

import pytest
import yaml
from multidict import CIMultiDict

from openclaw_rl.common.assets import read_asset
from openclaw_rl.common.client_ids import ClientId, read_session, read_user

NONE = ClientId()


def test_names_of_headers_are_in_any_case() -> None:
    headers = CIMultiDict({"x-openwebui-chat-id": "c1", "X-OPENWEBUI-USER-ID": " u1 "})
    assert read_session(headers, {}) == ClientId(value="c1", name="X-OpenWebUI-Chat-Id")
    assert read_user(headers, {}) == ClientId(value="u1", name="X-OpenWebUI-User-Id")


def test_headers_come_before_metadata() -> None:
    metadata = {"session_id": "m1", "langfuse_user_id": 7}
    assert read_session({}, metadata) == ClientId(value="m1", name="metadata.session_id")
    assert read_user({}, metadata) == ClientId(value="7", name="metadata.langfuse_user_id")
    assert read_session({"x-litellm-session-id": "h1"}, metadata).value == "h1"


@pytest.mark.parametrize(
    "value", ["", " ", "new", "None", "null", "{{LIBRECHAT_BODY_CONVERSATIONID}}"]
)
def test_values_that_name_nothing_are_left_out(value: str) -> None:
    assert read_session({"X-LibreChat-Conversation-Id": value}, {}) == NONE
    assert read_session({"X-LibreChat-Conversation-Id": value}, {"session_id": "m1"}).value == "m1"


@pytest.mark.parametrize("value", [None, True, 1.5, ["a"], {"id": "a"}])
def test_other_types_are_left_out(value: object) -> None:
    assert read_user({}, {"user_id": value}) == NONE


def test_an_id_of_each_request_is_no_session() -> None:
    assert (
        read_session({"x-litellm-trace-id": "t"}, {"trace_id": "t", "langfuse_trace_id": "t"})
        == NONE
    )


def test_each_name_has_a_source() -> None:
    shipped = yaml.safe_load(read_asset("client_ids.yaml"))
    for entry in [*shipped["session"], *shipped["user"]]:
        assert entry["client"]
        assert entry["source"]
        assert entry.get("headers") or entry.get("metadata")
