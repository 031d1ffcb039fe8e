"""Images of MCP tools at a gateway: a model that reads images gets them, another a placeholder, which is said once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import KEY, Site, Start
from tests.serve.images.test_images import png

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.types import EpisodeTicket, PlayLimits
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import turns
from openclaw_rl.testing import ScriptedImageEngine

SERVER = """
import base64, sys
from mcp.types import ImageContent, TextContent
try:
    from mcp.server import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("screen")
PNG = sys.argv[1]

@server.tool(structured_output=False)
def look() -> list:
    '''The screen.'''
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    drawing = {"type": "image", "data": base64.b64encode(b"<svg/>").decode(), "mimeType": "image/svg+xml"}
    words = TextContent(type="text", text="This is the screen:")
    return [words, ImageContent.model_validate(image), ImageContent.model_validate(drawing)]

server.run()
"""
PNG = png()
SHOWN = {"type": "text", "text": "This is the screen:\n[image]\n[image]"}
UNSEEN = {"type": "text", "text": "(The tool gave an image, which this model cannot see.)"}
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TEXT_CALL = '{"tool": "look"}'

Play = Callable[..., list[list[Any]]]


@pytest.fixture
def play(mcp_python: str, tmp_path: Path) -> Play:
    """Play episodes that look once; return the last messages of each, as the gateway stored them."""
    (tmp_path / "server.py").write_text(SERVER)
    server = {
        "name": "screen",
        "command": [mcp_python, "server.py", base64.b64encode(PNG).decode()],
    }
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps({"prompt": "p", "check": {"kind": "exact", "value": "Done."}})
    )

    def play(
        site: Site, call: str = CALL, agent: str | None = None, episodes: int = 1, **config: Any
    ) -> Any:
        given = {
            "mcp": [server],
            "tasks": "tasks.jsonl",
            "text_calls": {"explain": False},
            **config,
        }
        (tmp_path / "tools.json").write_text(json.dumps(given))
        said = [site.script.say(call), site.script.say("Done.")] * episodes
        site.engine.reply = lambda prompt, version: said.pop(0)[:]
        request = SourceRequest(source="tools", argument=str(tmp_path / "tools.json"), python=mcp_python, agent=agent,
                                search_path=os.environ["PATH"])  # fmt: skip
        return asyncio.run(play_episodes(site, request, episodes))

    return play


async def play_episodes(site: Site, request: SourceRequest, episodes: int) -> list[list[Any]]:
    kind = find_source(request)
    (task,), runner = kind.make_source(request).load_tasks(), kind.make_runner(request)
    shared, seen = new_scratch_folder("shared"), []
    await asyncio.to_thread(Path(shared).mkdir)
    runner.open_runner(shared)
    try:
        for number in range(episodes):
            ticket = EpisodeTicket(
                episode=f"e{number}", base_url=f"{site.url}/v1", api_key=KEY, model="openclaw"
            )
            outcome = await runner.play_episode(
                task, ticket, new_scratch_folder(f"e{number}"), PlayLimits(seconds=60)
            )
            assert (outcome.status, outcome.reward) == ("done", 1.0), outcome
            seen.append(list(site.last().request.messages[-1:]))
    finally:
        await runner.close_runner()
    return seen


def test_a_model_that_reads_images_gets_those_of_tools(
    start: Start, play: Play, capfd: pytest.CaptureFixture[str]
) -> None:
    site = start(visual=True, engine_kind=ScriptedImageEngine)
    ((result,),) = play(site)
    digest = hashlib.sha256(PNG).hexdigest()
    assert result["role"] == "tool"
    assert result["content"] == [
        SHOWN, {"type": "image", "sha256": digest, "media_type": "image/png", "width": 3, "height": 2}
    ]  # fmt: skip
    assert "note" not in capfd.readouterr().err
    with site.store.read() as conn:
        turn = turns.get(conn, site.last().request.id)
    assert turn is not None
    assert turn.untrainable_code is ReasonCode.IMAGES


def test_a_model_that_reads_text_gets_a_placeholder_and_that_is_said_once(
    start: Start, play: Play, capfd: pytest.CaptureFixture[str]
) -> None:
    ((first,), (second,)) = play(start(), episodes=2)
    assert first["content"] == [SHOWN, UNSEEN]
    assert second["content"] == SHOWN["text"], "nothing is sent that is not seen"
    assert capfd.readouterr().err.count("note: the model does not get the images of tools") == 1


def test_images_are_left_out_by_choice_and_by_the_agent_that_has_text_only(
    start: Start, play: Play, capfd: pytest.CaptureFixture[str]
) -> None:
    site = start(visual=True, engine_kind=ScriptedImageEngine)
    ((result,),) = play(site, images=False)
    assert result["content"] == SHOWN["text"]
    assert "note" not in capfd.readouterr().err
    ((result,),) = play(site, call=TEXT_CALL, agent="text")
    assert (result["role"], result["content"]) == ("user", SHOWN["text"])
    assert "the text [image]: --agent text sends text only" in capfd.readouterr().err
