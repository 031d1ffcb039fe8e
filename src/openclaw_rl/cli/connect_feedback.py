"""`openclaw-rl connect open-webui | slack | langfuse | langsmith`: bring in thumbs that people give elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.load_config import load_running_config
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import settings_options

if TYPE_CHECKING:
    import aiohttp

    from openclaw_rl.connect.feedback.score_relay import RoundReport, ScoreSource
    from openclaw_rl.settings.load import Config

SourceMaker = Callable[["aiohttp.ClientSession"], "ScoreSource"]


def add_feedback_commands(group: click.Group) -> None:
    """Add the commands to `openclaw-rl connect`."""
    for command in (connect_open_webui, connect_slack, connect_langfuse, connect_langsmith):
        group.add_command(command)


def _environment_option(flag: str, *variables: str, help: str) -> Callable[..., Any]:
    """Return a required option that the environment variables of a service's own clients set, too."""
    return click.option(flag, envvar=variables, required=True, show_envvar=True, help=help)


def _relay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--once", is_flag=True, help="Compare once and end, for example from cron."),
        click.option(
            "--every",
            default=30.0,
            show_default=True,
            type=click.FloatRange(min=1.0),
            help="Seconds between two comparisons.",
        ),
        click.option(
            "--days",
            default=7.0,
            show_default=True,
            type=click.FloatRange(min=0.0, min_open=True),
            help="Leave older scores alone, in days.",
        ),
        click.option(
            "--scale",
            default="0..1",
            show_default=True,
            metavar="LOW..HIGH",
            help="Scale of scores that are numbers. The upper third is +1, the lower third -1.",
        ),
        click.option(
            "--name",
            "names",
            multiple=True,
            required=True,
            help="Scores with this name, which people give (may be repeated).",
        ),
    ):
        command = option(command)
    return command


@click.command("open-webui")
@settings_options
def connect_open_webui(**options: Any) -> None:
    """Print the function for Open WebUI that sends thumbs here."""
    import json

    from openclaw_rl.connect.feedback import chat_programs

    echo(chat_programs.open_webui_function(load_running_config(**options)))
    echo(
        "Paste this in Open WebUI: Admin Panel > Functions > + (New Function), save it, and switch it on. It contains "
        "the key.\nThen set the headers of the connection to this gateway (Admin Panel > Settings > Connections > the "
        f"connection > Headers):\n{json.dumps(chat_programs.OPEN_WEBUI_HEADERS)}",
        err=True,
    )


@click.command("slack")
@settings_options
def connect_slack(**options: Any) -> None:
    """Print the manifest of a Slack app whose reactions a relay sends here."""
    from openclaw_rl.connect.feedback import chat_programs
    from openclaw_rl.supervisor.supervisor import read_key

    config = load_running_config(**options)
    # Without a key, the relay could not send anything.
    read_key(config)
    echo(chat_programs.slack_manifest())
    echo(
        "Create an app from this manifest (https://api.slack.com/apps > Create New App > From a manifest), with the "
        "address under which Slack reaches the relay. Install it, invite it to the channels, and run\n"
        f"  OPENCLAW_URL={config.serve.url} OPENCLAW_API_KEY=$(openclaw-rl key) SLACK_SIGNING_SECRET=... "
        "SLACK_BOT_TOKEN=xoxb-... python examples/feedback/slack_relay.py",
        err=True,
    )


@click.command("langfuse")
@click.option(
    "--url",
    envvar=("LANGFUSE_BASE_URL", "LANGFUSE_HOST"),
    show_envvar=True,
    default="https://cloud.langfuse.com",
    show_default=True,
    help="Address of Langfuse.",
)
@_environment_option("--public-key", "LANGFUSE_PUBLIC_KEY", help="Public key of the project.")
@_environment_option("--secret-key", "LANGFUSE_SECRET_KEY", help="Secret key of the project.")
@_relay_options
@settings_options
def connect_langfuse(
    url: str,
    public_key: str,
    secret_key: str,
    names: tuple[str, ...],
    scale: str,
    days: float,
    every: float,
    once: bool,
    **options: Any,
) -> None:
    """Bring in the scores that people give in Langfuse, until interrupted.

    New, changed and deleted scores are compared with those of the round before. Keys belong in the environment, where
    Langfuse's own clients read them, too: other users see a command line.
    """
    from openclaw_rl.connect.feedback import langfuse

    def make_source(http: aiohttp.ClientSession) -> ScoreSource:
        return langfuse.LangfuseSource(
            http,
            url=url,
            public_key=public_key,
            secret_key=secret_key,
            names=names,
            scale=scale,
        )

    _run(load_running_config(**options), make_source, days=days, every=every, once=once)


@click.command("langsmith")
@click.option(
    "--url",
    envvar="LANGSMITH_ENDPOINT",
    show_envvar=True,
    default="https://api.smith.langchain.com",
    show_default=True,
    help="Address of LangSmith's API.",
)
@_environment_option("--api-key", "LANGSMITH_API_KEY", help="API key of the workspace.")
@_relay_options
@settings_options
def connect_langsmith(
    url: str,
    api_key: str,
    names: tuple[str, ...],
    scale: str,
    days: float,
    every: float,
    once: bool,
    **options: Any,
) -> None:
    """Bring in the feedback that people give in LangSmith, until interrupted.

    New, changed and deleted feedback is compared with that of the round before; --name is its key. The API key belongs
    in the environment, where LangSmith's own clients read it, too: other users see a command line.
    """
    from openclaw_rl.connect.feedback import langsmith

    def make_source(http: aiohttp.ClientSession) -> ScoreSource:
        return langsmith.LangSmithSource(http, url=url, key=api_key, names=names, scale=scale)

    _run(load_running_config(**options), make_source, days=days, every=every, once=once)


def _run(
    config: Config, make_source: SourceMaker, *, days: float, every: float, once: bool
) -> None:
    import asyncio
    import contextlib

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_relay(config, make_source, days=days, every=every, once=once))


async def _relay(
    config: Config, make_source: SourceMaker, *, days: float, every: float, once: bool
) -> None:
    import asyncio

    from openclaw_rl.common.http.sessions import open_http_session
    from openclaw_rl.connect.feedback.score_relay import ScoreRelay, run_relay
    from openclaw_rl.supervisor.supervisor import read_key

    async with open_http_session() as http:
        source = make_source(http)
        relay = ScoreRelay(
            source,
            http,
            gateway=config.serve.url,
            key=read_key(config),
            state_file=config.home_dir / "relays" / f"{source.name}.json",
            days=days,
        )
        if once:
            _print_report(await relay.run_round())
            return
        echo(f"Comparing scores every {every:g} s until interrupted.", err=True)
        await run_relay(relay, every=every, stop=asyncio.Event(), report=_print_report)


def _print_report(report: RoundReport) -> None:
    if report.given or report.retracted:
        echo(f"{report.given} scores given, {report.retracted} taken back")
    for problem in report.problems:
        echo(problem, err=True)
