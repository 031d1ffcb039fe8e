"""A home with lessons and versions, the rows of its store, and requests of a browser."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from tests.store.world import close, judged, policy, serve

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, hash_folder
from openclaw_rl.page.version_replies import CACHE_NAME, VersionAnswer
from openclaw_rl.page.view import ActRequest, ViewRequest
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store.acts import new_act_id
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, move_head
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.types import PolicyState, Use

NOON = 1_790_000_000.0
DAY = 86400.0
SHORT = Lesson(
    id="aa",
    key="key",
    text="Keep answers short.",
    topic="length/short",
    scope_value="agent",
    made_at=NOON,
    reinforced_at=NOON,
    is_shared=False,
)


class ReadyAnswers:
    """Gives the replies of versions from a table; one that is not there is pending, and then fails."""

    def __init__(self, answers: Mapping[int, VersionAnswer]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def get(self, version: int, turn: str, prompt_ids: Sequence[int]) -> VersionAnswer:
        self.asked.append(version)
        return self.answers[version]


class LetterTokens:
    """A tokenizer whose tokens are letters."""

    def split(self, ids: Sequence[int]) -> list[str] | None:
        return [chr(each) for each in ids]


def make_home(folder: Path) -> Config:
    """Make a home: lessons "aa" (in force) and "bb" (superseded), versions 0 to 5 with head 3.

    Version 2 was refused, 4 and 5 follow 3 and were rolled back. 1 and 3 were trained on a turn each.
    """
    config = from_flat({"home": str(folder), "serve.api_key": "sk-test"})
    prepare_home(config)
    with Store.open(config.store_path) as store, store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        for number in range(1, 4):
            serve(conn, f"turn-{number}")
            close(conn, f"turn-{number}", "shorter, please")
        for number in range(4, 7):
            judged(conn, f"turn-{number}")
        add_version(conn, config, 1, 0, PolicyState.LIVE, turns=["turn-4"])
        add_version(conn, config, 2, 1, PolicyState.REJECTED, has_files=False)
        add_version(conn, config, 3, 1, PolicyState.LIVE, turns=["turn-5"])
        add_version(conn, config, 4, 3, PolicyState.ROLLED_BACK, turns=["turn-6"])
        add_version(conn, config, 5, 4, PolicyState.ROLLED_BACK)
        move_head(conn, DEFAULT_NAME, 3)
        add_lessons(conn)
    return config


def add_version(
    conn: Connection,
    config: Config,
    version: int,
    parent: int,
    state: PolicyState,
    *,
    turns: Sequence[str] = (),
    has_files: bool = True,
) -> None:
    reasons = {
        PolicyState.REJECTED: ("it is worse than the head in form", ReasonCode.WORSE),
        PolicyState.ROLLED_BACK: ("rolled back by hand", ReasonCode.ROLLED_BACK),
    }
    reason, code = reasons.get(state, (None, None))
    made = replace(policy(version, parent), reason=reason, reason_code=code, path=None, digest="")
    if has_files:
        folder = config.policies_dir / f"{version:06}"
        folder.mkdir(parents=True)
        (folder / ADAPTER_WEIGHTS).write_bytes(b"weights %d" % version)
        (folder / ADAPTER_CONFIG).write_bytes(b"{}")
        digest, files = hash_folder(folder)
        made = replace(made, path=str(folder), digest=digest, files=files)
    uses = [Use(policy=version, turn=turn, number=1) for turn in turns]
    policies.insert_version(conn, made, uses, state)


def add_lessons(conn: Connection) -> None:
    lessons.add_lesson(conn, SHORT)
    long = replace(SHORT, id="bb", text="Give long, detailed answers.", topic="length/long")
    lessons.add_lesson(conn, replace(long, made_at=NOON - DAY, reinforced_at=NOON - DAY))
    lessons.reinforce(conn, "bb", "turn-2", at=NOON - DAY, words="more detail, please")
    lessons.supersede(conn, "bb", "aa")
    lessons.reinforce(conn, "aa", "turn-1", at=NOON, words="shorter, please")
    for version, value in ((1, 0.5), (3, 0.25)):
        lessons.record_divergence(conn, "aa", version, value, at=NOON)
    assert SHORT.state is LessonState.ACTIVE


def copy_home(config: Config, folder: Path) -> Config:
    """Return a second home with the same store and files."""
    shutil.copytree(config.home_dir, folder)
    return from_flat({"home": str(folder), "serve.api_key": "sk-test"})


def view_request(conn: Connection, config: Config, **params: str) -> ViewRequest:
    return ViewRequest(
        conn=conn,
        config=config,
        params=params,
        now=NOON + 60,
        tokens=LetterTokens(),
        cache={CACHE_NAME: ReadyAnswers({})},
    )


def act_request(store: Store, config: Config, **form: str) -> ActRequest:
    return ActRequest(
        store=store,
        config=config,
        form={name: [value] for name, value in form.items()},
        act_id=new_act_id(),
        now=time.time(),
    )


_TIMES = ("at", "made_at", "reinforced_at")
_IDS_OF_ACTS = ("id", "actor")


def rows_of(config: Config) -> dict[str, list[str]]:
    """Return the rows of all tables, without times, the weights that age, and ids of acts and of sessions."""
    conn = sqlite3.connect(config.store_path)
    conn.row_factory = sqlite3.Row
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    tables = [row[0] for row in conn.execute(query)]
    dumped = {}
    for table in tables:
        rows = [_comparable(table, dict(row)) for row in conn.execute(f"SELECT * FROM {table}")]
        dumped[table] = sorted(json.dumps(row, sort_keys=True, default=repr) for row in rows)
    conn.close()
    return dumped


def _comparable(table: str, row: dict[str, Any]) -> dict[str, Any]:
    left_out = {*_TIMES, *(_IDS_OF_ACTS if table == "acts" else ())}
    kept = {name: value for name, value in row.items() if name not in left_out}
    if table == "lessons":
        kept["weight"] = round(kept["weight"], 2)
    for name in ("value", "data"):
        if table in ("meta", "events") and isinstance(kept.get(name), bytes):
            kept[name] = _without_times(kept[name])
    if table == "policies":
        kept["path"] = Path(kept["path"]).name if kept["path"] else None
    return kept


def _without_times(raw: bytes) -> str:
    try:
        value = json.loads(raw)
    except ValueError:
        return repr(raw)
    if isinstance(value, float):
        return "a time"
    if isinstance(value, dict):
        value.pop("at", None)
    return json.dumps(value, sort_keys=True)
