"""`openclaw-rl inspect`: what happened to sessions, turns, policies and episodes."""

from __future__ import annotations

from typing import Any

import click

from openclaw_rl.cli.help_sections import ListingGroup
from openclaw_rl.cli.load_config import load_running_config
from openclaw_rl.settings.cli_options import home_options

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("inspect", cls=ListingGroup, default="sessions")
def inspect_commands() -> None:
    """Show what happened to sessions, turns, policies and episodes. Without a command: list the sessions."""


@inspect_commands.command("sessions")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    default=30,
    show_default=True,
    help="Sessions at most.",
)
@_json_option
@home_options
def inspect_sessions(limit: int, as_json: bool, **options: Any) -> None:
    """List the newest sessions, one per line."""
    from openclaw_rl.status.inspect import show_sessions

    show_sessions(load_running_config(**options), limit, as_json=as_json)


@inspect_commands.command("session")
@click.argument("session_id")
@_json_option
@home_options
def inspect_session(session_id: str, as_json: bool, **options: Any) -> None:
    """Show every turn of a session: request, reply, verdict, training."""
    from openclaw_rl.status.inspect import show_session

    show_session(load_running_config(**options), session_id, as_json=as_json)


@inspect_commands.command("turn")
@click.argument("turn_id")
@_json_option
@home_options
def inspect_turn(turn_id: str, as_json: bool, **options: Any) -> None:
    """Show one turn. Prints its text, tokens, reaction, verdict, and the policies that were trained on it."""
    from openclaw_rl.status.inspect import show_turn

    show_turn(load_running_config(**options), turn_id, as_json=as_json)


@inspect_commands.command("policy")
@click.argument("version", type=click.IntRange(min=0))
@_json_option
@home_options
def inspect_policy(version: int, as_json: bool, **options: Any) -> None:
    """Show one policy version. Prints its parent, its metrics, and the turns that it was trained on."""
    from openclaw_rl.status.inspect import show_policy

    show_policy(load_running_config(**options), version, as_json=as_json)


@inspect_commands.command("episode")
@click.argument("episode_id")
@_json_option
@home_options
def inspect_episode(episode_id: str, as_json: bool, **options: Any) -> None:
    """Show one episode, turn by turn: observation, verdict, step reward, advantage."""
    from openclaw_rl.status.inspect_episodes import show_episode

    show_episode(load_running_config(**options), episode_id, as_json=as_json)


@inspect_commands.command("group")
@click.argument("group_id")
@_json_option
@home_options
def inspect_group(group_id: str, as_json: bool, **options: Any) -> None:
    """Show the episodes of one group, and what became of the group."""
    from openclaw_rl.status.inspect_episodes import show_group

    show_group(load_running_config(**options), group_id, as_json=as_json)
