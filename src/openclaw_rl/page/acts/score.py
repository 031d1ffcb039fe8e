"""The acts that score a reply, and take the score back."""

from __future__ import annotations

from openclaw_rl.owner_acts.scores import OwnerScore, retract_scores, score_reply
from openclaw_rl.page.view import (
    ActInput,
    ActPlan,
    ActRequest,
    ActResult,
    InvalidForm,
    NotFound,
    PageAct,
    ViewRequest,
)
from openclaw_rl.store.feedback import records

SCORE_PATH = "/ui/acts/score"
RETRACT_PATH = "/ui/acts/retract-score"
_SCORES = {"good": 1, "neither": 0, "bad": -1}
MEANT = "meant"
"""Choice without a score: the text says what the reaction meant."""
_QUESTIONS = {
    "good": "What was good about it (may be empty)",
    "bad": "How it should have been (may be empty)",
    "neither": "What to say about it (may be empty)",
    MEANT: "What you meant",
}
_TITLES = {
    "good": "Note that the reply was good",
    "bad": "Note that the reply was not good",
    "neither": "Note that the reply was neither good nor bad",
    MEANT: "Note what the reaction meant",
}
_CHOICE = ActInput(
    name="score",
    label="The reply was",
    kind="choice",
    options=(
        ("good", "good"),
        ("bad", "not good"),
        ("neither", "neither"),
        (MEANT, "none of these: the reaction meant …"),
    ),
)
_ANY_TEXT = ActInput(
    name="text",
    label="How it should have been, or what the reaction meant (may be empty with a score)",
    kind="textarea",
)


def plan_score(request: ViewRequest) -> ActPlan:
    """Plan to note a score; without one in the address, the person chooses it."""
    turn = request.text("turn")
    choice = request.text("score")
    if choice and choice not in _TITLES:
        raise NotFound(f"{choice[:20]!r} is no score: expected good, bad, neither or meant")
    if records.scope_of_reply(request.conn, turn) is None:
        raise NotFound(f"there is no reply {turn[:60]!r}")
    details = ["The judge of replies reads it, and the model learns from it."]
    if not choice:
        return ActPlan(
            title="Score this reply",
            details=details,
            button="Note it",
            fields={"turn": turn},
            inputs=[_CHOICE, _ANY_TEXT],
        )
    return ActPlan(
        title=_TITLES[choice],
        details=details,
        button="Note it",
        fields={"turn": turn, "score": choice},
        inputs=[ActInput(name="text", label=_QUESTIONS[choice], kind="textarea")],
    )


def apply_score(request: ActRequest) -> ActResult:
    choice = request.text("score")
    text = request.text("text").strip()
    if choice == MEANT:
        if not text:
            raise InvalidForm("the text is empty: expected what the reaction meant")
        opinion = OwnerScore(turn=request.text("turn"), comment=text)
    elif choice not in _SCORES:
        raise InvalidForm(f"score is {choice[:20]!r}: expected good, bad, neither or meant")
    else:
        is_bad = choice == "bad"
        opinion = OwnerScore(
            turn=request.text("turn"),
            score=_SCORES[choice],
            comment="" if is_bad else text,
            correction=text if is_bad else "",
        )
    return ActResult(message=score_reply(request.store, request.config, opinion, request.origin))


def plan_retract(request: ViewRequest) -> ActPlan:
    turn = request.text("turn")
    if records.scope_of_reply(request.conn, turn) is None:
        raise NotFound(f"there is no reply {turn[:60]!r}")
    return ActPlan(
        title="Take the score back?",
        details=["What you noted on this page about the reply no longer counts."],
        button="Take it back",
        fields={"turn": turn},
    )


def apply_retract(request: ActRequest) -> ActResult:
    return ActResult(message=retract_scores(request.store, request.text("turn"), request.origin))


ACTS = (
    PageAct(path=SCORE_PATH, plan=plan_score, apply=apply_score),
    PageAct(path=RETRACT_PATH, plan=plan_retract, apply=apply_retract),
)
