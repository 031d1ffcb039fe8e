"""The limit of an episode with tools is the policy's: servers that open slowly do not use it up. No box is opened."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw_rl.environments.registry import SourceRequest, find_source
from openclaw_rl.environments.sources.tools import tool_source
from openclaw_rl.environments.sources.tools.schema_check import (
    SchemaBroken,
    find_problem,
    is_linear,
)
from openclaw_rl.environments.types import EpisodeTicket, PlayLimits, PlayOutcome

SLOW_SERVER = """#!{python}
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if "open" in asked:
        time.sleep(2)
    print(json.dumps({{"id": asked["id"], "tools": []}}), flush=True)
"""
"""Stands for a Python with the package `mcp`, whose servers take two seconds to open."""


async def play_task(
    request: SourceRequest, seconds: float, reply_seconds: float = 0
) -> PlayOutcome:
    """Play the first task of a source with a policy that answers 42."""
    kind = find_source(request)
    task = next(iter(kind.make_source(request).load_tasks()))
    runner = kind.make_runner(request)

    async def reply(_: web.Request) -> web.Response:
        await asyncio.sleep(reply_seconds)
        message = {"role": "assistant", "content": "42"}
        return web.json_response({"id": "chatcmpl-1", "choices": [{"message": message}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", reply)
    server = web.AppRunner(app, shutdown_timeout=0.1)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{server.addresses[0][1]}/v1"
    ticket = EpisodeTicket(episode="e", base_url=address, api_key="k", model="m")
    runner.open_runner(tempfile.mkdtemp())
    try:
        return await runner.play_episode(
            task, ticket, f"{tempfile.mkdtemp()}/e", PlayLimits(seconds=seconds)
        )
    finally:
        await runner.close_runner()
        await server.cleanup()


def request_of(
    folder: Path, config: object, check: dict[str, object], **solution: object
) -> SourceRequest:
    (folder / "tools.json").write_text(json.dumps(config))
    (folder / "tasks.jsonl").write_text(
        json.dumps({"prompt": "p", "check": check} | solution) + "\n"
    )
    python = folder / "slow-python"
    python.write_text(SLOW_SERVER.format(python=sys.executable))
    python.chmod(0o755)
    return SourceRequest(
        source="tools",
        argument=str(folder / "tools.json"),
        tasks=folder / "tasks.jsonl",
        python=str(python),
        search_path="/usr/bin:/bin",
    )


@pytest.fixture
def slow(tmp_path: Path) -> SourceRequest:
    config = {"mcp": [{"name": "slow", "url": "http://127.0.0.1:9/mcp"}]}
    return request_of(tmp_path, config, {"kind": "exact", "value": "42"})


def test_a_server_that_opens_slowly_does_not_use_the_time_of_the_policy(
    slow: SourceRequest,
) -> None:
    found = asyncio.run(play_task(slow, seconds=1))
    assert (found.status, found.reward) == ("done", 1.0), found.reason


def test_a_server_that_does_not_open_is_void(
    slow: SourceRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_source, "_OPEN_SECONDS", 0.5)
    found = asyncio.run(play_task(slow, seconds=300))
    assert (found.status, found.reason) == ("void", "the tools did not open within 0.5 s")


def test_a_policy_that_takes_too_long_has_failed(slow: SourceRequest) -> None:
    found = asyncio.run(play_task(slow, seconds=1, reply_seconds=30))
    assert (found.status, found.reward, found.reason) == ("done", 0.0, "not done within 1 s")


def test_a_schema_that_leads_nowhere_makes_its_tasks_unfit(tmp_path: Path) -> None:
    tool = {"name": "f", "result": 1, "parameters": {"$ref": "http://127.0.0.1:9/schema"}}
    request = request_of(
        tmp_path, [tool], {"kind": "exact", "value": "42"}, answer=42, calls=[{"tool": "f"}]
    )
    source = find_source(request).make_source(request)
    found = asyncio.run(
        source.check_task(
            next(iter(source.load_tasks())), str(tmp_path / "e"), PlayLimits(seconds=300)
        )
    )
    assert (found.fit, found.reason) == (
        False,
        "tool f: parameters: Unresolvable: http://127.0.0.1:9/schema",
    )


def test_arguments_that_a_pattern_would_search_for_years_are_answered_at_once(
    tmp_path: Path,
) -> None:
    slow = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(a+)+$"}}}
    calls = [{"tool": "f", "arguments": {"x": 40 * "a" + "!"}}]
    tool = {"name": "f", "result": 1, "parameters": slow}
    request = request_of(tmp_path, [tool], {"kind": "exact", "value": "42"}, answer=42, calls=calls)
    source = find_source(request).make_source(request)
    found = asyncio.run(
        source.check_task(
            next(iter(source.load_tasks())), str(tmp_path / "e"), PlayLimits(seconds=300)
        )
    )
    assert "does not match" in found.reason


@pytest.mark.parametrize(("text", "fits"), [("ab", True), ("ac", False)])
def test_a_pattern_with_a_look_ahead_is_a_check_as_well(text: str, fits: bool) -> None:
    properties = {"x": {"type": "string", "pattern": "^a(?=b)"}, "n": {"pattern": "^$"}}
    problem = find_problem({"type": "object", "properties": properties}, {"x": text, "n": 3})
    assert (problem is None) is fits


SLOW_NAME = 40 * "a" + "!"
SLOW_SCHEMAS = {
    "pattern": {"properties": {"x": {"pattern": "(a+)+$"}}},
    "names": {"patternProperties": {"(a+)+$": {"type": "string"}}},
    "other names": {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False},
    "a schema for other names": {
        "patternProperties": {"(a+)+$": {}},
        "additionalProperties": {"type": "string"},
    },
    "property names": {"propertyNames": {"pattern": "(a+)+$"}},
    "look-ahead": {"properties": {"x": {"pattern": "(?=a)(a+)+$"}}},
    "look-ahead in names": {"patternProperties": {"(?=a)(a+)+$": {"type": "string"}}},
    "unevaluated names": {
        "patternProperties": {"(a+)+$": {}},
        "unevaluatedProperties": {"type": "string"},
    },
    "behind a reference": {
        "$defs": {"t": {"pattern": "(?=a)(a+)+$"}},
        "properties": {"x": {"$ref": "#/$defs/t"}},
    },
}


@pytest.mark.parametrize("kind", SLOW_SCHEMAS)
def test_no_pattern_of_a_schema_runs_without_end(kind: str) -> None:
    """With Python's `re` each of them takes centuries. Also on a fast path the answer names a problem or the limit."""
    schema = {"type": "object", **SLOW_SCHEMAS[kind]}
    problem = find_problem(schema, {"x": SLOW_NAME, SLOW_NAME: 1})
    if is_linear(schema):
        assert problem is None or "could not be checked" not in problem
    else:
        assert problem is not None
        assert "could not be checked within 5 s" in problem


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"n_1": 1}, None),
        ({"n_1": "a"}, "is not of type 'integer'"),
        ({"other": "a"}, None),
        ({"other": 1}, "is not of type 'string'"),
        ({"known": True, "n_": 1}, None),
    ],
)
def test_names_by_pattern_are_checked_as_before(arguments: Any, problem: str | None) -> None:
    schema = {
        "type": "object",
        "properties": {"known": {"type": "boolean"}},
        "patternProperties": {"^n_": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    }
    found = find_problem(schema, arguments)
    assert found is None if problem is None else problem in str(found)
    strict = schema | {"additionalProperties": False}
    assert find_problem(strict, {"n_1": 1, "known": False}) is None
    assert "'odd'" in str(find_problem(strict, {"odd": 1}))


def test_a_pattern_that_is_no_expression_breaks_the_tool() -> None:
    with pytest.raises(SchemaBroken, match="no regular expression"):
        find_problem({"properties": {"x": {"pattern": "(?=a"}}}, {"x": "a"})
