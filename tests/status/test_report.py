"""What `inspect` says at its head."""

from __future__ import annotations

import io
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.render.trl_templates import make_kind
from tests.store import world

from openclaw_rl.cli.main import cli
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import from_flat
from openclaw_rl.status.inspect import template_summary
from openclaw_rl.status.reasons import ReasonGroup, group_reasons
from openclaw_rl.status.report import (
    CURES,
    _render_gate,
    _render_newest_step,
    _render_untrainable_agent,
    folder_size,
    untrainable_agents,
)
from openclaw_rl.status.sentences import health_sentence
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import PolicyState, Sampling


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("starter", "hermes format; keeps everything"),
        (
            "qwen3",
            "hermes format; drops the reasoning of earlier turns (keeps it inside a tool loop)",
        ),
        ("gptoss", "harmony format; drops the reasoning of earlier turns"),
        ("nowhere/to-be-found", "from nowhere/to-be-found"),
    ],
)
def test_the_effect_of_the_chat_template_is_reported(kind: str, words: str, tmp_path: Path) -> None:
    path = kind if kind == "starter" or "/" in kind else str(make_kind(tmp_path / kind, kind))
    assert words in template_summary(from_flat({"home": str(tmp_path), "model.path": path})).plain


def test_a_broken_folder_does_not_hide_the_store(tmp_path: Path) -> None:
    assert (
        "no tokenizer.json"
        in template_summary(from_flat({"home": str(tmp_path), "model.path": str(tmp_path)})).plain
    )


def test_the_newest_step_lists_what_was_masked_and_clipped() -> None:
    metrics = {
        "gap": 0.0123, "gap/max": 0.8, "staleness/versions": 1.25, "staleness/versions/max": 3.0, "masked/gap": 0.004,
        "masked/opsm": 0.0, "clipped/binary": 0.05, "capped/binary": 0.0, "dropped/stale": 2.0, "truncated": 0.0,
    }  # fmt: skip
    assert _render_newest_step(
        [{"version": 3, "metrics": {}}, {"version": 4, "metrics": metrics}]
    ).plain.strip() == (
        "newest step (v4): off policy by 0.012 nats a token, at most 0.8; 1.2 versions old, at most 3; "
        "masked (gap) 0.4%; clipped (binary) 5.0%; 2 turns too stale"
    )
    assert _render_newest_step([{"version": 0, "metrics": {}}]).plain == ""


def test_the_figures_of_the_gate_are_those_of_a_version_in_use() -> None:
    rows = [
        {"version": number, "state": state.value, "metrics": {"gate/liked": number / 100}}
        for number, state in enumerate(PolicyState, start=5)
    ]
    states = {row["version"]: row["state"] for row in rows}
    assert states == {5: "candidate", 6: "live", 7: "rejected", 8: "rolled_back"}
    assert _render_gate(rows).plain == "gate of v6: liked +0.06"
    assert _render_gate(rows[:1]).plain == "gate of v5: liked +0.05"
    assert _render_gate([*rows[2:], {"version": 9, "state": "live", "metrics": {}}]).plain == ""


def test_reasons_are_grouped_by_their_codes() -> None:
    """What the words have in common does not matter."""
    stale = ReasonCode.TOO_STALE
    counts = {
        Reason(ReasonCode.GREEDY, "too stale: no"): 2,
        Reason(stale, "0.61 between version 3"): 1,
        Reason(stale, "0.72 between version 4"): 2,
    }
    assert group_reasons(counts) == [
        ReasonGroup(stale, "0.72 between version 4 (or similar)", 3),
        ReasonGroup(ReasonCode.GREEDY, "too stale: no", 2),
    ]


def test_an_agent_whose_turns_cannot_train_is_listed_with_the_cure() -> None:
    greedy = Sampling(temperature=0).untrainable_reason()
    assert greedy is not None
    counts = {
        "aider": {greedy: 3, None: 1},
        "chat": {None: 9},
        "": {Reason(ReasonCode.STATED, "a text"): 1},
    }
    rows = untrainable_agents(counts)
    assert [(row["agent"], row["share"], row["reasons"][0]["reason"]) for row in rows] == [
        ("", 1.0, "a text"),
        ("aider", 0.75, greedy.detail),
    ]
    assert "temperature: 1" in rows[1]["reasons"][0]["cure"]


def test_each_reason_of_an_agent_has_its_own_share() -> None:
    reasons: dict[Reason | None, int] = {
        Reason(ReasonCode.COMPLETION, "a text completion"): 17,
        Reason(ReasonCode.TOP_P, "0.9 cuts"): 9,
        Reason(ReasonCode.TOP_P, "0.8 cuts"): 6,
        Reason(ReasonCode.GREEDY, "greedy sampling"): 8,
        None: 60,
    }
    (row,) = untrainable_agents({"lm-eval": reasons})
    assert row["share"] == 0.40
    assert [reason["share"] for reason in row["reasons"]] == [0.17, 0.15, 0.08]
    assert [reason["code"] for reason in row["reasons"]] == ["text completion", "top_p", "greedy"]
    console = TerminalConsole(file=io.StringIO(), width=80)
    console.print(_render_untrainable_agent(row))
    words = console.file.getvalue()
    assert "40% of the turns of agent lm-eval cannot train:" in words
    assert "17%: a text completion" in words


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0}, {"temperature": 0.5, "convention": "raw"}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1},
        {"min_tokens": 5}, {"presence_penalty": 1.0}, {"logit_bias": {1: 1.0}}, {"grammar": "start: A"},
    ],
)  # fmt: skip
def test_each_reason_of_the_sampling_has_a_cure(sampling: dict[str, Any]) -> None:
    reason = Sampling(**sampling).untrainable_reason()
    assert reason is not None
    assert reason.code in CURES


def test_the_size_of_a_folder_with_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"1234567")
    (tmp_path / "loop").symlink_to("loop")
    assert folder_size(tmp_path) == 7


def test_the_size_of_a_folder_whose_versions_are_removed_meanwhile(tmp_path: Path) -> None:
    """The trainer removes old versions while `status` counts."""
    (tmp_path / "kept").write_bytes(b"x" * 7)
    is_over = threading.Event()

    def make_and_remove_versions() -> None:
        while not is_over.is_set():
            for name in ("a", "b", "c"):
                (tmp_path / name / "adapter").mkdir(parents=True)
                (tmp_path / name / "adapter" / "weights").write_bytes(b"y")
            for name in ("a", "b", "c"):
                shutil.rmtree(tmp_path / name)

    trainer = threading.Thread(target=make_and_remove_versions)
    trainer.start()
    try:
        sizes = {folder_size(tmp_path) for _ in range(500)}
    finally:
        is_over.set()
        trainer.join()
    assert sizes <= {7, 8, 9, 10}


def test_status_and_the_page_say_in_the_same_words_whether_all_is_well(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store, store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        world.judged(conn, "a", score=-1)
    shown = CliRunner().invoke(cli, ["status", "--json", "--home", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    status = json.loads(shown.stdout)
    expected = health_sentence(status["troubles"], status["loops"], {"default": 0})
    assert status["summary"] == expected
    assert "1 not good" in CliRunner().invoke(cli, ["status", "--home", str(tmp_path)]).stdout
