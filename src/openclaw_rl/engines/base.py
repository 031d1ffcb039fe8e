"""Helpers of the engines' clients: waiting until one answers, and bounds on versions and lengths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from openclaw_rl.errors import EngineError, EngineFull, EngineGone
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.types import PolicyRef

VersionKey = tuple[int, str]
"""(version, digest)"""
BASE_POLICY = PolicyRef(version=0, path=None, digest="")


async def wait_until_ready(
    fetch_info: Callable[[], Awaitable[EngineInfo]],
    timeout: float,  # noqa: ASYNC109 (a deadline over several attempts)
    back_off: tuple[float, float],
) -> EngineInfo:
    """Call `fetch_info` until it succeeds; raise `EngineGone` after `timeout`.

    `timeout` in seconds; `back_off`: first and longest pause in seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    pause, longest = back_off
    while True:
        left = deadline - loop.time()
        try:
            async with asyncio.timeout(max(left, 0.001)):
                return await fetch_info()
        except (EngineGone, TimeoutError) as error:
            if left - pause <= 0:
                reason = str(error) or "no answer"
                raise EngineGone(
                    f"the engine was not ready within {timeout:g} s: {reason}"
                ) from None
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


def check_capacity(policies: Sequence[PolicyRef], in_use: Iterable[VersionKey], limit: int) -> None:
    """Raise `EngineFull` if the policies and the versions that replies still use are more than `limit`."""
    versions = [policy.version for policy in policies]
    if len(set(versions)) != len(versions):
        raise EngineError(f"load received a version twice: {versions}")
    requested = {(policy.version, policy.digest) for policy in policies}
    draining = set(in_use) - requested
    if len(requested | draining) > limit:
        still = f" and {_version_numbers(draining)} still answering" if draining else ""
        raise EngineFull(
            f"versions {_version_numbers(requested)} requested{still}; engine.max_loaded_versions is {limit}. "
            "Try again when a reply has ended, or raise engine.max_loaded_versions"
        )


def _version_numbers(keys: Iterable[VersionKey]) -> list[int]:
    return sorted(version for version, _ in keys)


def max_reply_tokens(prompt: int, wanted: int, context: int) -> int:
    """Return the largest number of reply tokens. Raises `EngineError` if the prompt is empty or fills the context."""
    if prompt == 0:
        raise EngineError("the prompt is empty; expected at least one token id")
    if prompt >= context:
        raise EngineError(
            f"the prompt has {prompt} tokens; the context is {context}, including the reply"
        )
    return min(wanted if wanted > 0 else context, context - prompt)


def check_scored_lengths(prompt: int, response: int, context: int) -> None:
    """Raise `EngineError` if prompt or response is empty, or both together exceed the context."""
    if prompt + response > context:
        raise EngineError(
            f"prompt and response have {prompt + response} tokens; the context is {context}"
        )
    for length, what in ((prompt, "prompt"), (response, "response")):
        if length == 0:
            raise EngineError(f"the {what} is empty; expected at least one token id")
