"""Acts on lessons: edit, pin, unpin, share and forget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openclaw_rl.common.printable import cut_text
from openclaw_rl.owner_acts import lessons as acts
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
from openclaw_rl.status.lessons_report import is_in_prompts, scope_words
from openclaw_rl.store.lessons import cards, lessons, removal
from openclaw_rl.store.lessons.lessons import Lesson, LessonState

TAKE_BACK_PATH = "/ui/take-back"
_TITLE_CHARS = 120


def _require_lesson(request: ViewRequest) -> Lesson:
    lesson = lessons.get(request.conn, request.text("lesson"))
    if lesson is None:
        raise NotFound("This lesson does not exist. It may have been forgotten meanwhile.")
    return lesson


def _lesson_id(request: ActRequest) -> str:
    lesson = request.text("lesson")
    if not lesson:
        raise InvalidForm("the form names no lesson. Load the page again.")
    return lesson


def _title(act: str, lesson: Lesson) -> str:
    return f"{act} “{cut_text(lesson.text, _TITLE_CHARS)}”"


def plan_edit(request: ViewRequest) -> ActPlan:
    lesson = _require_lesson(request)
    details = [
        "The new words stand in prompts from the next reply on.",
        "They are practised until the weights follow them.",
    ]
    if lesson.is_examined:
        details.append("Lessons in force that contradict the new words are superseded.")
    if lesson.learned_version is not None:
        details.append("What the weights have learned from the earlier words stays.")
    return ActPlan(
        title="Edit this lesson",
        details=details,
        button="Save",
        fields={"lesson": lesson.id},
        inputs=[ActInput(name="text", label="What it learns", value=lesson.text, kind="textarea")],
    )


def apply_edit(request: ActRequest) -> ActResult:
    lesson = _lesson_id(request)
    edited = acts.edit_lesson(
        request.store, request.config, lesson, request.text("text"), request.origin
    )
    message = f"It says now: {edited.text}"
    for rival in edited.superseded:
        message += f" Superseded: {rival.text}"
    if edited.superseded_by is not None:
        message += " It is in no prompt, because a pinned lesson contradicts it. Pin this one to change that."
    return ActResult(message=message)


def plan_pin(request: ViewRequest) -> ActPlan:
    lesson = _require_lesson(request)
    details = [
        "It stays in prompts, also after it is in the weights, and whatever is said later.",
    ]
    if lesson.state is LessonState.SUPERSEDED:
        details.append("It is in force again. The lesson that superseded it is superseded.")
    if lesson.state is LessonState.WITHDRAWN:
        details.append("It was withdrawn because answers were wrong with it. They may be again.")
    return ActPlan(
        title=_title("Pin", lesson), details=details, button="Pin", fields={"lesson": lesson.id}
    )


def apply_pin(request: ActRequest) -> ActResult:
    pinned = acts.pin_lesson(request.store, _lesson_id(request), request.origin)
    rival = "" if pinned.rival is None else f" Superseded: {pinned.rival.text}"
    return ActResult(message=f"It is pinned: {pinned.lesson.text}{rival}")


def plan_unpin(request: ViewRequest) -> ActPlan:
    lesson = _require_lesson(request)
    return ActPlan(
        title=_title("Unpin", lesson),
        details=[
            "It leaves prompts when it is in the weights.",
            "What is said later can supersede it.",
        ],
        button="Unpin",
        fields={"lesson": lesson.id},
    )


def apply_unpin(request: ActRequest) -> ActResult:
    lesson = acts.unpin_lesson(request.store, _lesson_id(request), request.origin)
    return ActResult(message=f"It is not pinned any more: {lesson.text}")


def plan_share(request: ViewRequest) -> ActPlan:
    lesson = _require_lesson(request)
    return ActPlan(
        title=_title("Share", lesson),
        details=[
            "It reaches other users of the same key, and weights that others share.",
            "So far it is only for the person who said it. Sharing cannot be taken back but by forgetting it.",
        ],
        button="Share",
        fields={"lesson": lesson.id},
    )


def apply_share(request: ActRequest) -> ActResult:
    lesson = acts.share_lesson(request.store, _lesson_id(request), request.origin)
    return ActResult(message=f"It is shared: {lesson.text}")


def plan_forget(request: ViewRequest) -> ActPlan:
    """Say what leaves and what stays when a lesson is forgotten."""
    lesson = _require_lesson(request)
    card = cards.find_card(request.conn, lesson.id)
    details = []
    if is_in_prompts(
        {"state": lesson.state, "is_pinned": lesson.is_pinned}, request.config.serve.lessons
    ):
        details.append("It leaves prompts at once.")
    if card is not None and card.turns:
        details.append("The replies to which it was said do not give it again.")
    for freed, in_force in removal.freed_lessons(request.conn, lesson.id):
        if freed.id == in_force:
            text = cut_text(freed.text, _TITLE_CHARS)
            scope = scope_words(freed.scope_kind, freed.scope_value)
            details.append(f"In force again, {scope}: “{text}”")
    if card is not None and card.practice:
        details.append("Its replies of practice that no version has learned from are dropped.")
    if lesson.learned_version is None:
        details.append("What the weights have learned from its practice so far stays.")
    else:
        details.append(
            f"The weights stay as they are: they follow it since version {lesson.learned_version}."
        )
    return ActPlan(
        title=_title("Forget", lesson),
        details=details,
        button="Forget it",
        is_dangerous=True,
        fields={"lesson": lesson.id},
        follow=f"{TAKE_BACK_PATH}?lesson={lesson.id}",
        follow_text="Take it out of the weights, too",
    )


def apply_forget(request: ActRequest) -> ActResult:
    lesson = acts.forget_lesson(request.store, _lesson_id(request), request.origin)
    return ActResult(
        message=f"Forgotten: {lesson.text}",
        follow="/ui/learned",
        follow_text="Everything that it learned",
    )


def _lesson_act(
    name: str,
    plan: Callable[[ViewRequest], ActPlan],
    apply: Callable[[ActRequest], ActResult],
) -> PageAct:
    return PageAct(path=f"/ui/acts/{name}-lesson", plan=plan, apply=apply)


ACTS: Sequence[PageAct] = (
    _lesson_act("edit", plan_edit, apply_edit),
    _lesson_act("pin", plan_pin, apply_pin),
    _lesson_act("unpin", plan_unpin, apply_unpin),
    _lesson_act("share", plan_share, apply_share),
    _lesson_act("forget", plan_forget, apply_forget),
)
