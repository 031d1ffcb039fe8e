"""Plays episodes at a running OpenEnv server under the user's Python. See `request_loop`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import urllib.error
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from policy_chat import OPENER, ask_policy, stop_reason
from request_loop import ForeignRefusal, content_digest, page_of_tasks, serve_requests

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_SEEDS = 8
HTTP_SECONDS = 30.0
CLOSE_SECONDS = 2.0
# Characters that the policy sees.
MAX_OBSERVATION = 6000
# Of the lists and objects in an action.
MAX_DEPTH = 100
INVALID_ACTION = "(code: VALIDATION_ERROR)"
"""Part of the client's error for an action that does not fit the schema, which is the policy's fault."""
_schemas: dict[str, dict[str, Any]] = {}


async def list_tasks(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a task for each seed of the server."""
    importlib.import_module("openenv.core")
    url = asked["name"].rstrip("/")
    args = asked["args"]
    if urlsplit(url).hostname not in LOOPBACK or urlsplit(url).scheme != "http":
        raise ForeignRefusal(
            f"{url}: expected a server on this machine, e.g. http://127.0.0.1:8001"
        )
    unknown = sorted(args.keys() - {"seeds"})
    if unknown:
        raise ForeignRefusal(f"unknown arguments {unknown}. Known is seeds")
    schema = await asyncio.to_thread(read_schema, url)
    title = schema.get("title", "action")
    tasks = [
        {
            "id": f"seed-{seed}",
            "digest": content_digest([schema, seed]),
            "data": {"url": url, "seed": seed},
        }
        for seed in range(int(args.get("seeds", DEFAULT_SEEDS)))
    ]
    if not tasks:
        raise ForeignRefusal(f"{title}: seeds: expected at least 1")
    return dict(page_of_tasks(tasks, asked["start"]))


def read_schema(url: str) -> dict[str, Any]:
    """Return the JSON schema of the server's actions. Raises `ForeignRefusal` if no server answers."""
    if url not in _schemas:
        try:
            with OPENER.open(f"{url}/schema", timeout=HTTP_SECONDS) as answer:
                _schemas[url] = dict(json.load(answer)["action"])
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise ForeignRefusal(f"{url}: no OpenEnv server answers ({error})") from None
    return _schemas[url]


def text_field(schema: Mapping[str, Any]) -> str | None:
    """Return the one field that an action must have, if it is a text; else None."""
    required = schema.get("required") or []
    fields = schema.get("properties") or {}
    return (
        required[0]
        if len(required) == 1 and fields.get(required[0], {}).get("type") == "string"
        else None
    )


def read_action(reply: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the action of a reply: its text as the one field, else the JSON object in it, else None.

    An object that is nested deeper than `MAX_DEPTH` counts as none: the client or the server could not take it.
    """
    field = text_field(schema)
    if field is not None:
        return {field: reply}
    try:
        action, _ = json.JSONDecoder().raw_decode(reply[reply.index("{") :])
    except (ValueError, RecursionError):
        return None
    return action if isinstance(action, dict) and nesting_depth(action) <= MAX_DEPTH else None


def nesting_depth(value: Any) -> int:
    """Return how deeply lists and objects are nested in a JSON value."""
    depth = 0
    level = _collections([value])
    while level:
        depth += 1
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one
        level = _collections(inner)
    return depth


def _collections(values: list[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def write_system(schema: Mapping[str, Any]) -> str:
    """Return the instructions for the policy."""
    if text_field(schema) is not None:
        return "You act in an environment. Your reply is your action."
    fields = {
        name: field
        for name, field in (schema.get("properties") or {}).items()
        if name != "metadata"
    }
    return (
        "You act in an environment. Reply with one JSON object, your action, with these "
        f"fields: {json.dumps(fields)}"
    )


def write_observation(observation: Mapping[str, Any]) -> str:
    """Return an observation as text: its one text, else JSON."""
    shown = {
        name: value
        for name, value in observation.items()
        if value not in (None, "", {}, []) and name != "metadata"
    }
    values = list(shown.values())
    return (values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(shown))[
        :MAX_OBSERVATION
    ]


@contextlib.asynccontextmanager
async def open_client(url: str) -> AsyncIterator[Any]:
    """Connect to a server, and leave it within a short time, also if it hangs: the library waits 10 s for it."""
    from openenv.core.generic_client import GenericEnvClient

    client = GenericEnvClient(url)
    await client.connect()
    try:
        yield client
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()


async def play_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Play an episode: observation, reply, action, until the server says that it is done or a limit is reached.

    Raises `ForeignRefusal` for what is not the policy's fault: the limit is reached while the server works, or its
    answer is nested so deeply that it cannot be read.
    """
    schema = await asyncio.to_thread(read_schema, asked["data"]["url"])
    steps: list[dict[str, Any]] = []
    reason = "the episode ended"
    is_asking = False
    try:
        async with asyncio.timeout(asked["seconds"]), open_client(asked["data"]["url"]) as client:
            result = await client.reset(seed=asked["data"]["seed"])
            messages = [{"role": "system", "content": write_system(schema)}]
            messages.append({"role": "user", "content": write_observation(result.observation)})
            while not result.done:
                is_asking = True
                reply, turn = await asyncio.to_thread(ask_policy, asked, messages)
                is_asking = False
                messages.append({"role": "assistant", "content": reply})
                action = read_action(reply, schema)
                if action is None:
                    messages.append(
                        {
                            "role": "user",
                            "content": "Your reply has no JSON object. Expected an action.",
                        }
                    )
                    continue
                try:
                    result = await client.step(action)
                except RuntimeError as error:
                    if INVALID_ACTION not in str(error):
                        raise
                    messages.append(
                        {
                            "role": "user",
                            "content": "Your action has not the fields that are expected.",
                        }
                    )
                    continue
                if result.reward is not None:
                    steps.append({"turn": turn, "reward": float(result.reward)})
                messages.append({"role": "user", "content": write_observation(result.observation)})
    except TimeoutError:
        reason = f"its limit of {asked['seconds']:g} s"
        if not is_asking:
            raise ForeignRefusal(
                f"the server did not answer within the limit of {asked['seconds']:g} s"
            ) from None
    except RecursionError:
        raise ForeignRefusal("an answer of the server is nested too deeply to be read") from None
    except urllib.error.HTTPError as error:
        reason = stop_reason(error)
    return {
        "outcome": {
            "reward": sum((step["reward"] for step in steps), 0.0),
            "steps": steps,
            "reason": reason,
        }
    }


async def check_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Reset the server with the task's seed, and read its state. A server has no answer to replay."""
    async with asyncio.timeout(asked["seconds"]), open_client(asked["data"]["url"]) as client:
        result = await client.reset(seed=asked["data"]["seed"])
        await client.state()
    nop = float(result.reward or 0.0)
    if result.done:
        return {
            "nop": nop,
            "reason": "the episode is over before the first action",
            "checkable": True,
        }
    return {
        "nop": nop,
        "reason": "it starts, but a server has no answer to replay",
        "checkable": False,
    }


if __name__ == "__main__":
    serve_requests({"tasks": list_tasks, "check": check_task, "play": play_task})
