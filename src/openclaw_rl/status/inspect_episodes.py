"""Output of `inspect episode` and `inspect group`: turn by turn with observation, verdict, reward and advantage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.terminal import print_data
from openclaw_rl.errors import OpenClawError
from openclaw_rl.methods.group_relative import GroupRelativeMethod
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings.load import Config
from openclaw_rl.status.inspect import reply_text, shorten_line, turn_data, verdict_text
from openclaw_rl.status.report import read_store
from openclaw_rl.store.episodes import episodes, groups, turn_list
from openclaw_rl.store.episodes.credit import episode_steps
from openclaw_rl.store.episodes.records import Episode
from openclaw_rl.store.trust.judge_trust import read_trust

# Columns of a text.
_WIDTH = 100


def episode_data(conn: Connection, id: str, method: GroupRelativeMethod) -> dict[str, Any]:
    """Return one episode with its turns as plain JSON. Raises `OpenClawError` if it does not exist.

    `advantage` of a turn is what `method` gives it now: None while its group is not complete, and without a signal.
    """
    episode = episodes.get_episode(conn, id)
    if episode is None:
        raise OpenClawError(
            f"no episode {id!r}. `openclaw-rl inspect group ID` lists those of a group"
        )
    return _episode_data(conn, episode, method)


def group_data(conn: Connection, id: str, method: GroupRelativeMethod) -> dict[str, Any]:
    """Return one group with its episodes as plain JSON. Raises `OpenClawError` if it does not exist."""
    group = groups.get_group(conn, id)
    if group is None:
        raise OpenClawError(
            f"no group {id!r}. `openclaw-rl inspect episode ID` names the group of an episode"
        )
    group_episodes = [
        _episode_data(conn, episode, method) for episode in episodes.episodes_of_group(conn, id)
    ]
    known = [one["reward"] for one in group_episodes if one["reward"] is not None]
    return {
        "group": id,
        "task": group.task,
        "split": group.split,
        "agent": group.agent,
        "size": group.size,
        "completed_at": group.completed_at,
        "reason": group.reason,
        "mean_reward": sum(known) / len(known) if known else None,
        "episodes": group_episodes,
    }


def _episode_data(
    conn: Connection, episode: Episode, method: GroupRelativeMethod
) -> dict[str, Any]:
    listed = {turn["id"]: turn for turn in turn_list.list_turns(conn, episode.id)}
    places = episode_steps(conn, list(listed), read_trust(conn))
    rows = []
    for id_, row in listed.items():
        place = places.get(id_)
        more = {
            "step": row["step"],
            "step_reward": row["step_reward"] if place is None else place.step_reward,
            "advantage": None if place is None else method.advantage(place),
            "kind": row["kind"],
        }
        rows.append(turn_data(conn, id_) | more)
    return {
        "episode": episode.id,
        "task": episode.task,
        "group": episode.group,
        "split": episode.split,
        "status": episode.outcome or "running",
        "reward": episode.reward,
        "parts": dict(episode.parts),
        "reason": episode.reason,
        "max_steps": episode.max_steps,
        "started_at": episode.started_at,
        "expires_at": episode.expires_at,
        "ended_at": episode.ended_at,
        "turns": rows,
    }


def show_episode(config: Config, id: str, *, as_json: bool) -> None:
    """Print one episode turn by turn. Raises `OpenClawError` if it does not exist."""
    with read_store(config) as conn:
        data = episode_data(conn, id, credit_method(config))
    print_data(data, _episode_panel, as_json=as_json)


def show_group(config: Config, id: str, *, as_json: bool) -> None:
    """Print one group, episode by episode. Raises `OpenClawError` if it does not exist."""
    with read_store(config) as conn:
        data = group_data(conn, id, credit_method(config))
    print_data(data, _render_group, as_json=as_json)


def _render_group(data: Mapping[str, Any]) -> Group:
    state = (
        "complete"
        if data["completed_at"] is not None
        else f"{len(data['episodes'])} of {data['size']} episodes"
    )
    mean = "" if data["mean_reward"] is None else f", mean reward {data['mean_reward']:.4g}"
    title = Text.assemble(
        ("group ", "dim"),
        (data["group"], "bold"),
        f"  task {data['task']}, {data['split']}: {state}{mean}",
    )
    reason = [Text(data["reason"], "yellow")] if data["reason"] else []
    return Group(title, *reason, *map(_episode_panel, data["episodes"]))


def credit_method(config: Config) -> GroupRelativeMethod:
    """Return the method of the settings; with a method for conversations, that of the defaults."""
    method = make_method(config.train)
    return method if isinstance(method, GroupRelativeMethod) else GroupRelativeMethod()


def _credit_text(turn: Mapping[str, Any]) -> str:
    """Return the reward of the step and the advantage, as far as they are known."""
    names = {"step reward": "step_reward", "advantage": "advantage"}
    known = {name: turn[key] for name, key in names.items() if turn[key] is not None}
    return ", ".join(f"{name} {value:+.4g}" for name, value in known.items())


def _episode_panel(data: Mapping[str, Any]) -> Panel:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    parts = ", ".join(f"{name} {value:.4g}" for name, value in data["parts"].items())
    outcome = str(data["status"])
    if data["reward"] is not None:
        outcome += f", reward {data['reward']:.4g}"
        outcome += f" ({parts})" if parts else ""
    if data["reason"]:
        outcome += f": {data['reason']}"
    table.add_row("outcome", Text(outcome))
    for turn in data["turns"]:
        step = "beside" if turn["step"] is None else f"step {turn['step']}"
        for label, value in [(step, Text(turn["turn"], "dim")), *_turn_rows(turn)]:
            table.add_row(label, value)
    title = Text.assemble(
        (data["episode"], "bold"), f"  task {data['task']}, group {data['group']}, {data['split']}"
    )
    return Panel(table, title=title, title_align="left")


def _turn_rows(turn: Mapping[str, Any]) -> list[tuple[str, Text]]:
    rows = []
    if turn["reply"] is not None:
        rows.append(("  reply", Text(reply_text(turn["reply"]["message"], _WIDTH), "cyan")))
    if turn["damaged"]:
        rows.append(("  damaged", Text(turn["damaged"], "red")))
    messages = turn["reaction"]["messages"] if turn["reaction"] else ()
    if messages:
        observation = " / ".join(map(message_text, messages))
        rows.append(("  observation", Text(shorten_line(observation, _WIDTH))))
    verdict = turn["verdict"]
    if verdict and verdict["score"] is not None:
        rows.append(("  verdict", Text(verdict_text(verdict))))
    credit = _credit_text(turn)
    if credit:
        rows.append(("  credit", Text(credit)))
    reason = turn["drop_reason"] or turn["untrainable"]
    if reason:
        rows.append(("  left out", Text(reason, "yellow")))
    if turn["trained_into"]:
        rows.append(
            ("  trained into", Text(", ".join(f"version {v}" for v in turn["trained_into"])))
        )
    return rows
