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
    ask: Callable[[], Awaitable[EngineInfo]],
    timeout: float,  # noqa: ASYNC109 (a deadline over several attempts)
    back_off: tuple[float, float],
) -> EngineInfo:
    """Call `ask` until it succeeds; raise `EngineGone` after `timeout`. `back_off`: first and longest pause in s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    pause, longest = back_off
    while True:
        left = deadline - loop.time()
        try:
            async with asyncio.timeout(max(left, 0.001)):
                return await ask()
        except (EngineGone, TimeoutError) as error:
            if left - pause <= 0:
                why = str(error) or "no answer"
                raise EngineGone(f"the engine was not ready within {timeout:g} s: {why}") from None
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


def check_capacity(policies: Sequence[PolicyRef], in_use: Iterable[VersionKey], limit: int) -> None:
    """Raise `EngineFull` if the policies and the versions that replies still use are more than `limit`."""
    if len({p.version for p in policies}) != len(policies):
        raise EngineError(f"load received a version twice: {[p.version for p in policies]}")
    named = {(p.version, p.digest) for p in policies}
    draining = set(in_use) - named
    if len(named | draining) > limit:
        still = f" and {sorted(v for v, _ in draining)} still answering" if draining else ""
        raise EngineFull(
            f"versions {sorted(p.version for p in policies)} requested{still}; engine.max_loaded_versions is {limit}. "
            "Try again when a reply has ended, or raise engine.max_loaded_versions"
        )


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
