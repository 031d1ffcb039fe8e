"""`inspect` and `status`, as JSON and in a terminal of 80 columns: what is stored, in whole words."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from tests.store import world

from openclaw_rl.cli.main import cli
from openclaw_rl.common.progress import Activity, WorkKind
from openclaw_rl.status import report
from openclaw_rl.store import exchanges, heartbeats, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import head_moves, policies
from openclaw_rl.types import Capture, Policy, PolicyState, Use, Vote

LONG_ID = "6a14cd08-fc9f-40a2-809c-cbc78d9ea615-with-more"
QUESTION = "Which of the extraordinarily complicated regulations concerning transcontinental shipments apply today?"
CHINESE = "这是一个没有空格的很长的问题" * 12
METRICS = {"reward/mean": -0.857, "loss/total": -1.234e-05, "kl": 7.9e-07, "gradient/norm": 1234.5}
REASON = "gradient norm 1234.5 is above train.safety.gate_grad_norm, so that the step was rejected by the gate"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    store = Store.open(tmp_path / "store.db")
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
        lease = leases.acquire(conn, "train", "test", now=20.0, ttl=1000.0)
        assert lease is not None
        for name, said in (("turn-1", QUESTION), ("turn-2", CHINESE)):
            request = world.request(
                name, messages=[{"role": "user", "content": said}], session=LONG_ID + name[-2:]
            )
            marks = world.message_hash.mark_messages(request.messages, world.KEY, world.NOTHING)
            request = replace(request, marks=marks)
            exchanges.admit(conn, [request])
            exchanges.finish(conn, [world.reply(request, first_token_at=10.5)])
        world.close(conn, "turn-1", words="No, shorter please.")
        votes = (
            Vote(score=-1, hint="Be brief.", reason="asked for less"),
            Vote(score=None, error="timed out"),
        )
        assert turns.add_verdict(
            conn, world.verdict("turn-1", score=-1, hints=("Be brief.",), votes=votes)
        )
        policies.publish(conn, lease, made(1, 0), [Use(policy=1, turn="turn-1", number=1)], 21.0)
        policies.reject(conn, lease, made(2, 1), [], 22.0)
        head_moves.roll_back(conn, to=0, reason="rolled back by hand", at=23.0)
        policies.publish(conn, lease, made(3, 0), [], 24.0)
        redacted = world.request(
            "secret", messages=(), marks=request.marks, capture=Capture.REDACTED, session="s"
        )
        exchanges.admit(conn, [redacted])
        exchanges.finish(conn, [world.reply(redacted)])
    heartbeats.write_heartbeat(
        store, "judge", "degraded: no usable vote at http://127.0.0.1:9000/v1 for 12 s"
    )
    store.close()
    return tmp_path


def made(version: int, parent: int) -> Policy:
    policy = world.policy(version, parent)
    rejected = version == 2
    return replace(
        policy,
        metrics=METRICS,
        reason=REASON if rejected else None,
        state=PolicyState.REJECTED if rejected else policy.state,
        path=f"/home/somebody/.openclaw-rl/versions/{version:06d}-d6e82aea",
        created_at=time.time(),
    )


def run(home: Path, *arguments: str) -> str:
    done = CliRunner().invoke(
        cli, [*arguments, "--home", str(home)], env={"COLUMNS": "80"}, catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


def as_json(home: Path, *arguments: str) -> Any:
    return json.loads(run(home, *arguments, "--json"))


# --------------------------------------------------------------------------------------- as JSON


def test_sessions_as_json(home: Path) -> None:
    redacted, *others = as_json(home, "inspect", "sessions")["sessions"]
    assert redacted == {
        "session": "s",
        "title": "conversation without text",
        "turns": 1,
        "states": {"served": 1},
        "first_message": None,
    }
    assert [row["first_message"] for row in others] == [CHINESE, QUESTION]
    assert others[1]["states"] == {"judged": 1}
    assert len(as_json(home, "inspect", "sessions", "--limit", "1")["sessions"]) == 1


def test_a_turn_as_json(home: Path) -> None:
    turn = as_json(home, "inspect", "turn", "turn-1")
    assert (turn["turn"], turn["state"], turn["user"], turn["trained_into"]) == (
        "turn-1",
        "judged",
        QUESTION,
        [1],
    )
    assert (turn["sampling"]["temperature"], turn["prompt_tokens"], turn["version"]) == (0.7, 4, 0)
    assert turn["reply"]["message"] == {"role": "assistant", "content": world.WORDS}
    assert turn["reply"]["mean_logprob"] == pytest.approx(-0.875)
    assert (turn["reply"]["seconds_to_first_token"], turn["reply"]["seconds"]) == (0.5, 1.0)
    assert turn["reaction"]["messages"] == [{"role": "user", "content": "No, shorter please."}]
    assert (turn["verdict"]["score"], turn["verdict"]["hints"]) == (-1, ["Be brief."])
    assert [vote["error"] for vote in turn["verdict"]["votes"]] == [None, "timed out"]
    assert as_json(home, "inspect", "turn", "secret")["user"] is None


def test_a_session_and_a_policy_as_json(home: Path) -> None:
    turn = as_json(home, "inspect", "turn", "turn-1")
    session = as_json(home, "inspect", "session", turn["session"])
    assert session == {"session": LONG_ID + "-1", "turns": [turn]}
    policy = as_json(home, "inspect", "policy", "1")
    assert (policy["state"], policy["lineage"], policy["turns"]) == ("rolled_back", [1, 0], [turn])
    assert policy["metrics"] == METRICS
    assert as_json(home, "inspect", "policy", "2")["reason"] == REASON


# ------------------------------------------------------------------------------------------------------ 80 columns

COMMANDS = {
    "status": ("status",),
    "sessions": ("inspect", "sessions"),
    "session": ("inspect", "session", LONG_ID + "-1"),
    "turn": ("inspect", "turn", "turn-1"),
    "policy": ("inspect", "policy", "3"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_it_fits_80_columns(home: Path, name: str) -> None:
    assert max(map(cell_len, run(home, *COMMANDS[name]).splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "status",
            f"version state turns served reward loss kl grad time {REASON} no usable vote 127.0.0.1:9000/v1",
        ),
        ("status", "v0 v1 v2 v3 rolled_back rejected -0.86 -1.2e-05 7.9e-07 1.2e+03"),
        ("sessions", f"{LONG_ID}-1 judged {QUESTION[:60]}"),
        (
            "session",
            f"{QUESTION[:60]} {world.WORDS} No, shorter please. (exact link) rules hint: Be brief.",
        ),
        (
            "turn",
            f"{QUESTION} {world.WORDS} No, shorter please. rules tokens, session relation {LONG_ID}-1",
        ),
        (
            "policy",
            "/home/somebody/.openclaw-rl/versions/000003-d6e82aea reward/mean -1.234e-05 live",
        ),
    ],
)
def test_no_word_is_broken(home: Path, name: str, expected: str) -> None:
    shown = set(run(home, *COMMANDS[name]).replace("│", " ").split())
    joined = " ".join(sorted(shown))
    assert [
        word for word in expected.split() if word not in shown and word.strip("().,") not in joined
    ] == []


def test_a_version_names_its_parent_if_it_is_not_the_one_before(home: Path) -> None:
    lines = run(home, "status").splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("v3 ")] == [["v3", "of", "v0"]]
    assert [line.split()[1] for line in lines if line.startswith("v1 ")] == ["rolled_back"]


def test_a_long_text_ends_between_two_words(home: Path) -> None:
    lines = run(home, "inspect", "sessions").splitlines()
    cut = next(line for line in lines if line.startswith("Which"))
    assert cut.endswith(" …")
    assert QUESTION.startswith(cut[:-1])
    chinese = next(line for line in lines if line.startswith("这"))
    assert chinese.endswith("…"), "a text without spaces is cut anywhere"
    assert cell_len(chinese) <= 80


def test_status_says_how_far_a_long_step_is(home: Path) -> None:
    """As data, and in words where it is shown; a pass without progress says so."""
    activity = Activity(
        kind=WorkKind.TRAIN,
        number=2,
        total=3,
        expected=12.0,
        remaining=61.0,
        began_at=time.time() - 20,
    )
    with Store.open(home / "store.db") as store:
        heartbeats.write_heartbeat(
            store, "train", "training version 4 on 2 new turns", activity=activity
        )
    runner = CliRunner()
    shown = " ".join(
        runner.invoke(cli, ["status", "--home", str(home)], terminal_width=200).output.split()
    )
    assert "busy: training pass 2 of 3, about" in shown
    data = json.loads(runner.invoke(cli, ["status", "--json", "--home", str(home)]).output)
    (row,) = [row for row in data["loops"] if row["name"] == "train"]
    assert (row["activity"]["kind"], row["activity"]["number"], row["activity"]["total"]) == (
        "train",
        2,
        3,
    )
    assert 30 <= row["activity"]["left"] <= 41
    assert row["advanced"] < 10
    words = report.describe_work(row | {"advanced": 95.0, "alive": True})
    assert words.startswith("training version 4 on 2 new turns; busy: training pass 2 of 3, about ")
    assert words.endswith("; no progress for 95 s")
    assert report.describe_work(row | {"activity": None}) == "training version 4 on 2 new turns"
