"""How far engines and the trainer differ on the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.types import Policy


def engine_gaps(known: Sequence[Policy]) -> dict[str, dict[str, float]]:
    """Return per engine the mean |log pi - log mu| in nats on tokens sampled by the same weights, and their number."""
    sums: dict[str, list[float]] = {}
    for policy in known:
        for name, tokens in policy.metrics.items():
            if name.startswith("gap/") and name.endswith("/tokens"):
                engine = name.removeprefix("gap/").removesuffix("/tokens")
                total = sums.setdefault(engine, [0.0, 0.0])
                total[0] += policy.metrics[f"gap/{engine}"] * tokens
                total[1] += tokens
    return {
        engine: {"mean": gap / tokens, "tokens": tokens}
        for engine, (gap, tokens) in sums.items()
        if tokens
    }
