"""Acts on versions: pin, unpin, freeze and unfreeze training, roll back, promote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openclaw_rl.owner_acts import versions as acts
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
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import require_name
from openclaw_rl.train.rollback import (
    PromotionPlan,
    RollbackPlan,
    check_policy_files,
    plan_promotion,
    plan_rollback,
)
from openclaw_rl.types import Policy

_Plan = RollbackPlan | PromotionPlan
_SHOWN_VERSIONS = 12
_REASON_CHARS = 300
_LEARN_AGAIN = ActInput(
    name="learn_again", label="Let it train on these turns again", kind="checkbox"
)


def _require_version(request: ViewRequest) -> Policy:
    version = request.integer("version")
    if version is None:
        raise NotFound("The address names no version.")
    return policies.require_version(request.conn, version)


def _version_of(request: ActRequest) -> int:
    value = request.text("version")
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise InvalidForm(f"the version is {value[:40]!r}: expected a number. Load the page again.")
    return int(value)


def plan_pin(request: ViewRequest) -> ActPlan:
    version = _require_version(request).version
    return ActPlan(
        title=f"Keep the files of version {version}?",
        details=[
            "Its files are kept until you unpin it, however many versions follow.",
            "It can be rolled back to, and compared, as long as its files are kept.",
        ],
        button="Pin",
        fields={"version": str(version)},
    )


def apply_pin(request: ActRequest) -> ActResult:
    version = _version_of(request)
    acts.pin_version(request.store, version, request.origin)
    return ActResult(message=f"The files of version {version} are kept.")


def plan_unpin(request: ViewRequest) -> ActPlan:
    version = _require_version(request).version
    return ActPlan(
        title=f"No longer keep the files of version {version}?",
        details=["They are removed when there are more versions than the settings keep."],
        button="Unpin",
        fields={"version": str(version)},
    )


def apply_unpin(request: ActRequest) -> ActResult:
    version = _version_of(request)
    acts.unpin_version(request.store, version, request.origin)
    return ActResult(message=f"Version {version} is no longer pinned.")


def plan_freeze(request: ViewRequest) -> ActPlan:
    head = policies.head(request.conn).version
    return ActPlan(
        title="Freeze training?",
        details=[
            f"Version {head} stays in use. No version is made, and none is rolled back automatically.",
            "Replies, reactions and lessons are still noted. Training uses them when it continues.",
        ],
        button="Freeze training",
    )


def apply_freeze(request: ActRequest) -> ActResult:
    frozen = acts.freeze_training(request.store, request.origin)
    message = f"Training is frozen at version {frozen.head}."
    if frozen.waiting_batches:
        message += f" A taking back waits, too: {frozen.waiting_batches} batches are left."
    return ActResult(message=message)


def plan_unfreeze(request: ViewRequest) -> ActPlan:
    return ActPlan(
        title="Continue training?",
        details=["It also trains on what was said while training was frozen."],
        button="Continue training",
    )


def apply_unfreeze(request: ActRequest) -> ActResult:
    acts.unfreeze_training(request.store, request.origin)
    return ActResult(message="Training continues.")


def plan_roll_back(request: ViewRequest) -> ActPlan:
    """Say what a rollback leaves and what it drops."""
    version = _require_version(request)
    name = require_name(request.conn, request.text("policy") or version.name)
    plan = plan_rollback(request.conn, version.version, name=name)
    turns = len(plan.turns)
    details = [
        f"Version {plan.to} answers new requests as soon as it is loaded. No request waits for that.",
        f"No longer in use: {_version_list(plan.undone_versions)}. They can be promoted later.",
        f"They were trained on {turns} turns, which are not trained on again unless you tick the box.",
        "Lessons that only these versions have learned are in prompts again.",
    ]
    if plan.cancelled_batches:
        details.append(
            f"The taking back in progress ends: {plan.cancelled_batches} batches are not trained on again."
        )
    return ActPlan(
        title=f"Roll back to version {plan.to}?",
        details=details,
        button="Roll back",
        is_dangerous=True,
        fields={
            "version": str(plan.to),
            "policy": name,
            "head": str(plan.head),
            "turns": str(turns),
        },
        inputs=[
            _LEARN_AGAIN,
            ActInput(name="reason", label="Reason, for the list", value="rolled back by hand"),
        ],
    )


def apply_roll_back(request: ActRequest) -> ActResult:
    version = _version_of(request)
    with request.store.read() as conn:
        name = require_name(conn, request.text("policy"))
        plan = plan_rollback(conn, version, name=name)
    fate = _move_head(request, plan, acts.roll_back, "rolled back by hand")
    return ActResult(message=f"Version {plan.to} is in use again. {fate}")


def plan_promote(request: ViewRequest) -> ActPlan:
    """Say what a promotion leaves and what it drops."""
    version = _require_version(request).version
    plan = plan_promotion(request.conn, version)
    turns = len(plan.turns)
    details = [
        f"Version {plan.to} answers new requests as soon as it is loaded, and training continues from it.",
        f"No longer in use: {_version_list(plan.left_versions)}. They can be promoted later, too.",
        f"They were trained on {turns} turns that version {plan.to} has not learned from. These are not trained on "
        "again unless you tick the box.",
    ]
    return ActPlan(
        title=f"Use version {plan.to}?",
        details=details,
        button="Promote",
        is_dangerous=True,
        fields={"version": str(plan.to), "head": str(plan.head), "turns": str(turns)},
        inputs=[
            _LEARN_AGAIN,
            ActInput(
                name="reason",
                label="Reason, for the list",
                value=f"version {plan.to} was promoted by hand",
            ),
        ],
    )


def apply_promote(request: ActRequest) -> ActResult:
    version = _version_of(request)
    with request.store.read() as conn:
        plan = plan_promotion(conn, version)
    fate = _move_head(
        request, plan, acts.promote_version, f"version {version} was promoted by hand"
    )
    return ActResult(message=f"Version {plan.to} is in use. {fate}")


def _move_head(
    request: ActRequest, plan: _Plan, act: Callable[..., int], default_reason: str
) -> str:
    """Carry a plan out, and return what becomes of the turns.

    Raises `InvalidForm` unless the plan is the one that the person has read.
    """
    if (str(plan.head), str(len(plan.turns))) != (request.text("head"), request.text("turns")):
        raise InvalidForm(
            "what this would do has changed meanwhile. Close this, look again, and repeat."
        )
    check_policy_files(request.store, plan.name, plan.to)
    learn_again = bool(request.text("learn_again"))
    reason = " ".join(request.text("reason").split())[:_REASON_CHARS]
    removed = act(
        request.store,
        plan,
        learn_again=learn_again,
        reason=reason or default_reason,
        origin=request.origin,
    )
    if learn_again:
        return "The turns may be trained on again."
    return f"Turns that are not trained on again: {removed}."


def _version_list(versions: Sequence[int]) -> str:
    shown = ", ".join(str(version) for version in versions[:_SHOWN_VERSIONS])
    more = len(versions) - _SHOWN_VERSIONS
    noun = "version" if len(versions) == 1 else "versions"
    return f"{noun} {shown} and {more} more" if more > 0 else f"{noun} {shown}"


ACTS: Sequence[PageAct] = (
    PageAct(path="/ui/acts/pin-version", plan=plan_pin, apply=apply_pin),
    PageAct(path="/ui/acts/unpin-version", plan=plan_unpin, apply=apply_unpin),
    PageAct(path="/ui/acts/freeze-training", plan=plan_freeze, apply=apply_freeze),
    PageAct(path="/ui/acts/unfreeze-training", plan=plan_unfreeze, apply=apply_unfreeze),
    PageAct(path="/ui/acts/roll-back", plan=plan_roll_back, apply=apply_roll_back),
    PageAct(path="/ui/acts/promote-version", plan=plan_promote, apply=apply_promote),
)
