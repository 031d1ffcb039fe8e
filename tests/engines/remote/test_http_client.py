"""The HTTP client of engines: where requests go."""

from __future__ import annotations

import asyncio

import pytest
from tests.redirect_server import redirecting

from openclaw_rl.engines.remote.http_client import OPENAI_HEALTH, HttpClient, RequestRefused


@pytest.mark.parametrize("status", [301, 307, 308])
@pytest.mark.parametrize("streams", [False, True])
def test_prompts_follow_no_redirect(status: int, streams: bool) -> None:
    """The owner agreed to one address. With 307 and 308 a client sends the body again, to any other."""

    async def ask(url: str) -> None:
        client = HttpClient(url, OPENAI_HEALTH, api_key="secret")
        try:
            if streams:
                async for _ in client.stream_events("/v1/completions", {"prompt": [1, 2]}):
                    pass
            else:
                await client.call_json("POST", "/v1/completions", {"prompt": [1, 2]})
        finally:
            await client.close()

    with (
        redirecting(status) as (url, received),
        pytest.raises(
            RequestRefused, match=rf"/v1/completions at {url} is redirected \({status}\)"
        ) as caught,
    ):
        asyncio.run(ask(url))
    assert received == []
    assert "\n" not in str(caught.value)
