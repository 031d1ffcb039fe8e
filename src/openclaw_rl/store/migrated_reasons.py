"""Codes of the reasons that earlier versions of the program stored as words. For migrations 24 and 25 alone.

No other code reads words: what is written since has its code beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

Prefixes = Sequence[tuple[str, str]]
"""Beginnings of reasons and their codes. They are values of `reasons.ReasonCode` of that time, and never change."""

UNTRAINABLE: Prefixes = (
    ("greedy sampling", "greedy"),
    ("raw log-probabilities", "raw logprobs"),
    ("top_p ", "top_p"),
    ("top_k ", "top_k"),
    ("min_p ", "min_p"),
    ("min_tokens ", "min_tokens"),
    ("penalties ", "penalties"),
    ("logit_bias ", "logit_bias"),
    ("a forced format", "forced format"),
    ("a text completion", "text completion"),
    ("the client forbids it", "not stored"),
    ("the reply continues a message", "continued message"),
    ("its prompt has images", "images"),
    ("a message, tool or template variable has", "control token"),
    ("its task is held out", "held out"),
    ("captured without", "redacted"),
    ("not scored: ", "unscored"),
    ("its trajectory says so", "not trainable"),
    ("longer than the model takes", "too long"),
    ("the reply is missing", "no reply"),
    ("no token of the reply", "no token"),
    ("its tokens belong to another model", "other model"),
    ("sampled at temperature", "other temperature"),
    ("too stale: ", "too stale"),
    ("no score and no hint", "no signal"),
    ("no score, ", "no signal"),
    ("the verdict has nothing", "no signal"),
    ("every advantage of the batch", "no signal"),
    ("the batch gives no signal", "no signal"),
    ("the batch had nothing to say", "no signal"),
    ("the reply was cut", "truncated"),
    ("no hint could be put into the prompt", "hint unusable"),
    ("it belongs to no episode", "no episode"),
    ("it is on a branch", "other branch"),
    ("its group gives no signal", "equal rewards"),
    ("its group says nothing", "equal rewards"),
    ("its group ", "few rewards"),
    ("its episode is void", "void episode"),
    ("a group is trained on whole", "too stale"),
    ("the batch that it was in", "no gradient"),
    ("no token is left to train on", "no gradient"),
    ("the batch asks for no further change", "no gradient"),
    ("a step on it alone was rejected", "rejected alone"),
    ("it cannot be trained", "cannot train"),
    ("damaged: ", "damaged"),
    ("set aside: ", "set aside"),
)
POLICY: Prefixes = (
    ("it cannot be trained: ", "cannot train"),
    ("gradient norm ", "gradient norm"),
    ("KL to the base ", "base kl"),
    ("even ", "step kl"),
    ("the entropy ", "entropy"),
    ("a praised reply of its batch is junk", "junk"),
    ("the praised replies of its batch", "outlier"),
    ("the verdicts of its batch contradict", "contradiction"),
    ("it is worse than the head", "worse"),
    ("it looks worse than the head", "worse"),
    ("canary: ", "worse"),
    ("the trainer died ", "broken"),
    ("its files are damaged", "damaged"),
    ("version ", "outdated"),
    ("the policy ", "outdated"),
    ("turns that it was trained on were taken back", "taken back"),
)
VERDICT: Prefixes = (
    ("abstained: a tie", "tie"),
    ("abstained: no score has", "no majority"),
)
DROPPED: Prefixes = (
    ("the version trained on it was rolled back", "rolled back"),
    # Of 0.1.
    ("what was learned from it was taken back", "rolled back"),
    ("a version that was not trained on it was promoted", "promoted"),
    ("damaged: ", "damaged"),
)
UNLINKED: Prefixes = (
    ("ambiguous: ", "ambiguous"),
    ("the message before the reply is another one", "no tie"),
    ("its reply was given under another ", "other name"),
    ("the summary in place of its history was given under another ", "other name"),
    ("the client sends another text in place of the reply", "other text"),
    ("a reply under 24 characters", "short text"),
    ("the summary in place of its history has under ", "short text"),
    ("its replies are not from this gateway", "not ours"),
    ("the summary in place of its history is no reply", "not ours"),
    ("its history names tool calls of this gateway", "quoted"),
    ("its history has a reply of this gateway only inside", "quoted"),
    ("the turn before the summary", "unknown turn"),
)
_UNLINKED_OPENING = "no reply in its history ("
_NOT_FINITE = ", expected a finite number"


def fill_codes(conn: sqlite3.Connection) -> None:
    """Write the code of each reason that is stored as words."""
    conn.create_function(
        "untrainable_code_of", 1, lambda text: find_code(text, UNTRAINABLE, "stated")
    )
    conn.create_function("version_code_of", 2, code_of_version)
    conn.create_function("verdict_code_of", 1, lambda text: find_code(text, VERDICT, None))
    conn.create_function("cause_of", 2, lambda text, cause: find_code(text, DROPPED, cause))
    conn.execute(
        "UPDATE turns SET untrainable_code = untrainable_code_of(untrainable) WHERE untrainable IS NOT NULL"
    )
    conn.execute(
        "UPDATE turns SET cause = cause_of(reason, cause) WHERE cause IN ('taken back', 'set aside')"
    )
    conn.execute(
        "UPDATE policies SET reason_code = version_code_of(reason, state) WHERE reason IS NOT NULL"
    )
    conn.execute(
        "UPDATE verdicts SET reason_code = verdict_code_of(reason) WHERE score IS NULL AND reason LIKE 'abstained: %'"
    )


def fill_unlinked_codes(conn: sqlite3.Connection) -> None:
    """Write the code of why a turn is not linked."""
    conn.create_function("unlinked_code_of", 1, code_of_unlinked)
    conn.execute(
        "UPDATE turns SET unlinked_code = unlinked_code_of(unlinked) WHERE unlinked IS NOT NULL"
    )


def code_of_unlinked(text: str) -> str:
    """Return the code of the last reason: that of the reply to which the request reacts."""
    if text.startswith(_UNLINKED_OPENING):
        text = text.partition(": ")[2].split("; ")[-1]
    return find_code(text, UNLINKED, None) or "stated"


def find_code(text: str | None, prefixes: Prefixes, default: str | None) -> str | None:
    """Return the code of the first prefix with which the words begin, or the default."""
    return next(
        (code for prefix, code in prefixes if text is not None and text.startswith(prefix)),
        default,
    )


def code_of_version(text: str, state: str) -> str:
    """Return the code of a version that was rejected or rolled back. The owner's words may be any."""
    if state == "rolled_back":
        return "rolled back"
    if text.endswith(_NOT_FINITE):
        return "not finite"
    return find_code(text, POLICY, None) or "stated"
