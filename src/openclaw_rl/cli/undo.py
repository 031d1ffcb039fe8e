"""`openclaw-rl undo`: take turns out of what was learned, and train on the rest again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.load_config import load_config
from openclaw_rl.common.printable import echo, echo_error
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.cli_options import home_options

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config
    from openclaw_rl.store.db import Store

POLL_SECONDS = 0.2
# Seconds without a trainer after which the command no longer waits: one may be restarted.
_MAX_SILENCE = 30.0


@click.command("undo")
@click.option("--turn", "ids", metavar="ID", multiple=True, help="This turn (may be repeated).")
@click.option(
    "--session",
    "names",
    metavar="ID",
    multiple=True,
    help="All turns of this session (may be repeated).",
)
@click.option("--since", metavar="WHEN", help="All turns since then: 12h, 7d, or 2026-03-01T12:00.")
@click.option(
    "--lesson",
    metavar="TEXT",
    help="All turns with this hint or lesson: its id in `learned` or `lessons`, or words.",
)
@click.option(
    "--policy", metavar="NAME", help="Only turns of this policy (policy.per), e.g. agent:coder."
)
@click.option(
    "--reason", default="undone by hand", show_default=True, help="Reason for `inspect` to show."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the rest is trained on again.")
@click.option("--now", is_flag=True, help="Train in this command, if no trainer runs on the home.")
@home_options
def run_undo(
    ids: tuple[str, ...],
    names: tuple[str, ...],
    since: str | None,
    lesson: str | None,
    policy: str | None,
    reason: str,
    yes: bool,
    no_wait: bool,
    now: bool,
    **options: Any,
) -> None:
    """Undo what was learned from some turns, as if they had never been trained on.

    The last version without them answers at once. The other turns that were learned since are trained on again, batch
    by batch, by the running trainer; new turns wait until then. Without any turn: continue an interrupted undo.
    """
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.owner_acts.undo import take_back
    from openclaw_rl.status.report import open_store
    from openclaw_rl.status.undo_report import count_text, describe_hints, describe_plan
    from openclaw_rl.train.undo import check_safe_files, match_hints, select_turns
    from openclaw_rl.trajectories.operations import parse_since

    config = load_config(**options)
    with open_store(config) as store:
        with store.read() as conn:
            after = None if since is None else parse_since(since, time.time())
            selected = select_turns(
                conn, ids=ids, names=names, since=after, lesson=lesson, policy=policy
            )
            hints = [] if lesson is None else match_hints(conn, lesson)
        if not selected and not _count_left(store):
            raise click.UsageError(
                "give --turn, --session, --since or --lesson; no undo is in progress."
            )
        if selected:
            agreed = check_safe_files(store, selected)
            for line in describe_hints(hints):
                echo(line)
            for plan in agreed:
                for line in describe_plan(plan):
                    echo(line)
            if not yes:
                click.confirm("Continue?", abort=True)
            outcome = take_back(
                store,
                agreed,
                selected,
                model=config.model.name,
                reason=reason,
                origin=ActOrigin(),
            )
            echo(outcome)
            left = _count_left(store) if no_wait else 0
            if left:
                rest = count_text(left, "batch is", "batches are")
                echo(f"{rest} left to train on again; `openclaw-rl undo` shows the bar")
        if not no_wait:
            _retrain(config, store, now=now, yes=yes)


def _named_heads(heads: Mapping[str, int]) -> str:
    from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME

    unnamed = f"{DEFAULT_NAME}: "
    return ", ".join(
        f"{name}: version {head}".removeprefix(unnamed) for name, head in heads.items()
    )


def _retrain(config: Config, store: Store, *, now: bool, yes: bool) -> None:
    """Wait until the running trainer has trained on the batches that are left; with `now`, else train here.

    `yes`: the owner agrees to what is sent to a service that trains.
    """
    from openclaw_rl.status.undo_report import format_seconds, no_trainer_text
    from openclaw_rl.store.lineage import policies, version_list
    from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
    from openclaw_rl.train.retraining import RETRAINED_METRIC
    from openclaw_rl.types import PolicyState

    started = time.monotonic()
    with store.read() as conn:
        first = policies.next_version(conn)
    total = _count_left(store)
    if not total:
        return
    if _trainer_is_alive(store):
        _follow_batches(
            store, lambda: time.sleep(POLL_SECONDS), max_silence=0.0 if now else _MAX_SILENCE
        )
    if now and _count_left(store):
        _train_here(config, store, yes=yes)
    left = _count_left(store)
    if left:
        echo(no_trainer_text(left))
        return
    with store.read() as conn:
        live = [p for p in version_list.policies_from(conn, first) if p.state is PolicyState.LIVE]
        done = sum(RETRAINED_METRIC in policy.metrics for policy in live)
        heads = {
            name: policies.head(conn, name).version
            for name in sorted({p.name for p in live} or {DEFAULT_NAME})
        }
    seconds = format_seconds(time.monotonic() - started)
    echo(
        f"{config.model.name} is {_named_heads(heads)}: {done} of {total} batches were trained on again in {seconds}"
    )
    if done < total:
        where = "the lines above say why" if now else f"{config.logs_dir / 'train.log'} says why"
        echo(f"the others gave no version, or a rollback cancelled them; {where}")


def _train_here(config: Config, store: Store, *, yes: bool) -> None:
    import logging

    from openclaw_rl.common.progress import Wait
    from openclaw_rl.settings.load import with_policy_owner
    from openclaw_rl.store.lineage.policy_names import stored_owner
    from openclaw_rl.supervisor.supervisor import admit_start
    from openclaw_rl.train.resume import resolve_base
    from openclaw_rl.train.worker import open_train_loop

    # See `setup_logging`.
    logging.getLogger("bitsandbytes.backends.cpu").setLevel(logging.ERROR)
    with store.read() as conn:
        config = with_policy_owner(config, stored_owner(conn))
    config = resolve_base(config)
    admit_start(config, ("train",), yes=yes)
    loop = open_train_loop(config, store)
    shown = ""

    def train_batch() -> None:
        nonlocal shown
        if loop.run_once():
            return
        note = loop.note
        if Wait.TRAINER in loop.waits and note != shown:
            echo_error(note)
            shown = note
        time.sleep(POLL_SECONDS)

    try:
        _follow_batches(store, train_batch, max_silence=math.inf)
    finally:
        loop.forget_attempts()
        loop.close()


def _follow_batches(store: Store, wait: Callable[[], None], *, max_silence: float) -> None:
    """Show a bar until no batch is left, or until no trainer ran for `max_silence` seconds; call `wait` in between."""
    from openclaw_rl.cli.evaluate_judge import progress_bar

    total = left = _count_left(store)
    heard = time.monotonic()
    with progress_bar() as update:
        while left and time.monotonic() - heard <= max_silence:
            update("training again", total - left, total)
            wait()
            left = _count_left(store)
            _check_unfrozen(store, left)
            heard = time.monotonic() if _trainer_is_alive(store) else heard


def _check_unfrozen(store: Store, left: int) -> None:
    from openclaw_rl.status.undo_report import frozen_text
    from openclaw_rl.store.lineage import policy_marks

    with store.read() as conn:
        if left and policy_marks.frozen_since(conn) is not None:
            raise OpenClawError(frozen_text(left))


def _count_left(store: Store) -> int:
    from openclaw_rl.store.lineage import retraining

    with store.read() as conn:
        return retraining.count_batches(conn)


def _trainer_is_alive(store: Store) -> bool:
    from openclaw_rl.status.undo_report import retraining_state

    with store.read() as conn:
        return retraining_state(conn, time.time()).is_trainer_alive
