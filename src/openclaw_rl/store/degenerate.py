"""Detects degenerate replies: empty ones, and those that repeat themselves in a loop."""

from __future__ import annotations

import numpy as np

from openclaw_rl.common.message_hash import visible_text
from openclaw_rl.types import FinishReason, Ids, Reply

MIN_LOOP_TOKENS = 32
"""In tokens; a shorter reply may repeat itself on purpose ("ha ha ha")."""
MAX_PERIOD = 8


def degenerate_reason(reply: Reply) -> str | None:
    """Return why a finished reply is degenerate, or None. The stop token does not count as content."""
    ids, truncated = reply.response_ids, reply.finish_reason is FinishReason.LENGTH
    content = ids if truncated else ids[:-1]
    visible = visible_text(reply.message) or reply.message.get("tool_calls")
    if len(content) == 0 or not (visible or truncated):
        return "degenerate reply: it is empty"
    period = loop_period(content) if len(content) >= MIN_LOOP_TOKENS else None
    if period is None:
        return None
    what = "the same token" if period == 1 else f"the same {period} tokens"
    return f"degenerate reply: it repeats {what} for more than half of its {len(content)} tokens"


def loop_period(ids: Ids) -> int | None:
    """Return the shortest period (1 to 8 tokens) of a loop over more than half of `ids` [n] in one stretch, or None."""
    n = len(ids)
    for period in range(1, MAX_PERIOD + 1):
        same = ids[period:] == ids[:-period]
        if 2 * (np.count_nonzero(same) + period) > n and 2 * (_longest_run(same) + period) > n:
            return period
    return None


def _longest_run(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    edges = np.flatnonzero(~np.concatenate(([False], flags, [False])))
    return int(np.max(np.diff(edges))) - 1
