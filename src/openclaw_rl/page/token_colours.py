"""The tokens of a reply, coloured by what a version learned from each, or by how likely each was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.page.view import ViewRequest
from openclaw_rl.store import exchanges
from openclaw_rl.store.lineage.token_credit import credit_of_turn

LEVELS = 6
"""Shades of a colour; page.css has a class for each."""
MAX_TOKENS = 4000
"""Tokens that are coloured."""
MAX_ROWS = 400
"""Tokens in the table."""
MAX_VERSIONS = 3
LOGPROB = "logprob"
PLAIN = "plain"
# A token of this log-probability, or a lower one, gets the full colour.
_LEAST_LIKELY = -4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyToken:
    """A token of a reply: its text, the classes of its colour, and its numbers in words."""

    text: str
    classes: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Numbers of the tokens of a reply. `name`: in the address."""

    name: str
    label: str
    values: Sequence[float]


def collect_tokens(request: ViewRequest, turn: str, show: str) -> Mapping[str, Any] | None:
    """Return the tokens of a reply by a measure, and the measures; None without a reply, or without its tokens."""
    exchange = exchanges.get_readable(request.conn, [turn]).get(turn)
    if exchange is None or exchange.reply is None or not len(exchange.reply.response_ids):
        return None
    reply = exchange.reply
    texts = request.tokens.split(reply.response_ids[:MAX_TOKENS].tolist())
    if texts is None:
        return None
    measures = _credit_measures(request, turn, len(reply.response_ids))
    logprobs = [float(value) for value in reply.logprobs]
    measures.append(Measure(name=LOGPROB, label="log-probability", values=logprobs))
    by_name = {measure.name: measure for measure in measures}
    chosen = by_name.get(show)
    if chosen is None and show != PLAIN and len(measures) > 1:
        chosen = measures[0]
    return {
        "tokens": _colour(texts, measures, chosen),
        "measures": measures,
        "chosen": PLAIN if chosen is None else chosen.name,
        "rows": _table_rows(texts, measures),
        "count": len(reply.response_ids),
        "most": MAX_TOKENS,
    }


def _credit_measures(request: ViewRequest, turn: str, length: int) -> list[Measure]:
    """Return the credit that the newest versions gave, newest first."""
    credit = credit_of_turn(request.conn, turn)
    newest = [version for version in reversed(credit) if len(credit[version]) == length]
    return [
        Measure(
            name=f"credit-{version}",
            label=f"credit in version {version}",
            values=[float(value) for value in credit[version]],
        )
        for version in newest[:MAX_VERSIONS]
    ]


def _colour(
    texts: Sequence[str], measures: Sequence[Measure], chosen: Measure | None
) -> list[ReplyToken]:
    largest = 0.0
    if chosen is not None:
        largest = max((abs(value) for value in chosen.values if math.isfinite(value)), default=0.0)
    tokens = []
    for index, text in enumerate(texts):
        numbers = ", ".join(f"{m.label} {_format(m.values[index])}" for m in measures)
        classes = "" if chosen is None else _classes(chosen, chosen.values[index], largest)
        tokens.append(ReplyToken(text=text, classes=classes, title=numbers))
    return tokens


def _format(value: float) -> str:
    return f"{value:+.3g}"


def _classes(measure: Measure, value: float, largest: float) -> str:
    """Return the classes of a token: the kind of its colour, and how strong it is."""
    if not math.isfinite(value):
        return ""
    if measure.name == LOGPROB:
        level = round(LEVELS * min(1.0, value / _LEAST_LIKELY))
        return f"tok-s tok-{level}" if level > 0 else ""
    if not value:
        return ""
    # The square root shows small values beside a large one.
    level = max(1, round(LEVELS * math.sqrt(abs(value) / largest)))
    return f"{'tok-p' if value > 0 else 'tok-n'} tok-{level}"


def _table_rows(texts: Sequence[str], measures: Sequence[Measure]) -> list[list[str]]:
    """Return the text of each token with its numbers."""
    return [
        [repr(text), *(_format(measure.values[index]) for measure in measures)]
        for index, text in enumerate(texts[:MAX_ROWS])
    ]
