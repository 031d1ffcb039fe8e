"""Text of other people in every field of a store: what the commands print can neither control a terminal nor break."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from tests.store import world

from openclaw_rl.cli.main import main
from openclaw_rl.common.gateway_address import GatewayAddress, publish_address
from openclaw_rl.common.logging_metrics import setup_logging
from openclaw_rl.common.printable import to_printable
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import from_flat
from openclaw_rl.status import watch
from openclaw_rl.store import exchanges, heartbeats, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.turn_states import drop
from openclaw_rl.types import Feedback, Origin, Use, Vote

CONTROLS = "\x1b[2J\x1b]0;title\x07\x9b31m\x9dx\x9c\x00\x08\r\x7f\u202e\u2066\u200f\u061c\u2028"
HOSTILE = f"[/x][red] :skull: {CONTROLS} [link=http://example.com]end"
COMMANDS = (
    ("status",),
    ("inspect", "sessions"),
    ("inspect", "session", HOSTILE),
    *(("inspect", "turn", name) for name in (f"judged {HOSTILE}", "dropped", "imported")),
    ("inspect", "policy", "1"),
    ("learned",),
    ("inspect", "policy", "2"),
)
"""Commands that print data, each also with --json."""
FAILING = (("inspect", "turn", f"unknown {HOSTILE}"), ("inspect", "session", f"unknown {HOSTILE}"))


def messages(**more: Any) -> list[dict[str, Any]]:
    call = {"id": HOSTILE, "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    return [
        {"role": "user", "content": HOSTILE, "name": HOSTILE} | more,
        {"role": "assistant", "tool_calls": [call]},
    ]


def request(id_: str, **changes: Any) -> Any:
    said = [*messages(), {"role": "user", "content": HOSTILE}]
    made = world.request(
        id_,
        agent=HOSTILE,
        user=HOSTILE,
        session=HOSTILE,
        messages=said,
        marks=world.message_hash.mark_messages(said, world.KEY, world.NOTHING),
        tools=[{"type": "function", "function": {"name": HOSTILE, "description": HOSTILE}}],
        template={HOSTILE: HOSTILE},
        identity="i",
    )
    return replace(made, **changes)


def serve(conn: Any, made: Any) -> None:
    exchanges.admit(conn, [made])
    exchanges.finish(
        conn, [world.reply(made, message=messages()[1] | {"content": HOSTILE}, error=HOSTILE)]
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home [red]"
    store = Store.open(home / "store.db")
    with store.write() as conn:
        policies.ensure_root(conn, base=HOSTILE, identity="i", at=1.0)
        lease = leases.acquire(conn, "train", "test", now=20.0, ttl=1000.0)
        assert lease is not None
        name = f"judged {HOSTILE}"
        serve(conn, request(name))
        serve(conn, request("dropped", untrainable=Reason(ReasonCode.STATED, HOSTILE)))
        serve(conn, request("imported", origin=Origin.TEXT))
        feedback = Feedback(
            id="f", scope="key", target=name, comment=HOSTILE, correction=HOSTILE, given_at=12.0
        )
        records.add_feedback(conn, [feedback])
        for turn in (name, "imported"):
            world.close(conn, turn, words=HOSTILE)
        votes = (Vote(score=-1, hint=HOSTILE, reason=HOSTILE), Vote(score=None, error=HOSTILE))
        made = world.verdict(
            name, score=-1, hints=(HOSTILE,), votes=votes, judge=HOSTILE, reason=HOSTILE
        )
        assert turns.add_verdict(conn, made)
        assert drop(conn, "dropped", ReasonCode.FAILED, f"set aside {HOSTILE}", at=14.0)
        turns.mark_untrainable(conn, {"imported": Reason(ReasonCode.STATED, f"left out {HOSTILE}")})
        metrics = {HOSTILE: 1.0, f"gap/{HOSTILE}": 0.5, f"gap/{HOSTILE}/tokens": 3.0}
        hostile = replace(
            world.policy(1, 0),
            metrics=metrics,
            reason=HOSTILE,
            path=HOSTILE.replace("\0", ""),
            digest=HOSTILE,
        )
        policies.publish(conn, lease, hostile, [Use(policy=1, turn=name, number=1)], 21.0)
        policies.reject(conn, lease, replace(hostile, version=2, parent=1), [], 22.0)
    for worker in ("gateway", HOSTILE):
        heartbeats.write_heartbeat(store, worker, HOSTILE, heartbeats.PARKED)
    store.close()
    (home / "logs").mkdir()
    line = {
        "at": time.time(),
        "level": "error",
        "logger": "x",
        "message": f"engine ended: {HOSTILE}",
        "code": "worker_ended",
        "worker": "engine",
        "cause": HOSTILE,
    }
    (home / "logs" / "supervisor.log").write_text(f"{json.dumps(line)}\n" * 3)
    return home


def printed(capsys: pytest.CaptureFixture[str], home: Path, *command: str) -> str:
    """What the command prints, in all. It must end as a command does that has printed its words."""
    code: Any = 0
    try:
        main(
            [*command[:1], "--home", str(home), *command[1:]]
            if len(command) == 1
            else [*command, "--home", str(home)]
        )
    except SystemExit as ended:
        code = ended.code
    assert code in (0, 1, None)
    said = capsys.readouterr()
    return said.out + said.err


def check_harmless(text: str) -> None:
    assert text
    assert to_printable(text) == text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "command", [*COMMANDS, *FAILING, ("doctor", "--troubles")], ids=lambda c: " ".join(c[:2])
)
def test_commands_print_no_control_sequences(
    home: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    address = GatewayAddress(
        url="http://localhost:9", model=HOSTILE, model_path="starter", key="file", pid=1
    )
    with publish_address(home, address):
        text = printed(capsys, home, *command)
    check_harmless(text)
    assert "[/x]" in text.replace("\n", ""), "data is printed as it is, not as markup"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:2]))
def test_json_keeps_the_data(
    home: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    text = printed(capsys, home, *command, "--json")
    check_harmless(text)
    assert json.dumps(HOSTILE, ensure_ascii=False)[1:-1] in json.dumps(
        json.loads(text), ensure_ascii=False
    )


def test_the_page_of_watch_is_harmless(home: Path) -> None:
    out = io.StringIO()
    console = TerminalConsole(file=out, width=200)
    with Store.open(home / "store.db") as store, store.read() as conn:
        console.print(
            watch.build_page(
                watch.collect_page_data(from_flat({"home": str(home)}), conn, time.time())
            )
        )
    check_harmless(out.getvalue())
    assert "[/x]" in out.getvalue()


def test_a_streamed_reply_prints_no_control_sequences() -> None:
    out = io.StringIO()
    console = TerminalConsole(file=out, width=80, force_terminal=True)
    for piece in CONTROLS:  # as `chat` prints what arrives
        console.print(Text(piece, style="bold"), end="")
    styles = r"\x1b\[[0-9;]*m"  # those of the console itself
    assert to_printable(re.sub(styles, "", out.getvalue())) == re.sub(styles, "", out.getvalue())
    assert "\x1b[2J" not in out.getvalue()


def test_log_lines_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = setup_logging("test", tmp_path, readable="readable.log")
    log.error("a session: %s", HOSTILE, extra={"session": HOSTILE})
    check_harmless(capsys.readouterr().err)
    check_harmless((tmp_path / "readable.log").read_text())
    raw = (tmp_path / "test.log").read_text()
    check_harmless(raw)
    assert json.loads(raw)["session"] == HOSTILE


def test_text_in_other_scripts_stays() -> None:
    for text in ("日本語 مرحبا שלום 👩‍👩‍👧 é\tx\n", "a" * 10):
        assert to_printable(text) == text
