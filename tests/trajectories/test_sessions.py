"""What scripts and plug-ins use: sessions of a folder, advantages, rows for `datasets`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectories.world import PRINTED, Home, live, main, plot, put

import openclaw_rl
from openclaw_rl.errors import OpenClawError
from openclaw_rl.methods.gae import compute_gae
from openclaw_rl.trajectories.operations import export_sessions, parse_since
from openclaw_rl.trajectories.sessions import SessionAwareProcessor, inspect_sessions


def test_sessions_are_listed_with_their_types(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", PRINTED)
    put(tmp_path / "b.jsonl", {"session_id": "b", "turns": [main("x", "y")]})
    sessions = openclaw_rl.inspect_sessions(tmp_path)
    kinds = {name: [turn["type"] for turn in items] for name, items in sessions.items()}
    assert kinds == {"user_session_abc123": ["main", "side"], "b": ["main"]}
    assert sessions["b"][0]["prompt"] == "x"


def test_invalid_sessions_are_named_or_left_out(tmp_path: Path) -> None:
    put(
        tmp_path / "a.jsonl",
        {"session_id": "b", "turns": [{"type": "main", "promt": "x"}]},
        PRINTED,
    )
    with pytest.raises(OpenClawError, match="line 1: turn 1: unknown key 'promt'"):
        inspect_sessions(tmp_path)
    assert list(inspect_sessions(tmp_path, strict=False)) == ["user_session_abc123"]


floats = st.floats(-3, 3)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(floats, floats), min_size=1, max_size=12),
    floats,
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_is_the_sum_that_the_paper_states(
    steps: list[tuple[float, float]], last: float, gamma: float, lambda_: float
) -> None:
    rewards, values = [r for r, _ in steps], [v for _, v in steps] + [last]
    delta = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    expected = [
        sum((gamma * lambda_) ** n * d for n, d in enumerate(delta[t:]))
        for t in range(len(rewards))
    ]  # arXiv:1506.02438, eq. 16
    np.testing.assert_allclose(compute_gae(rewards, values, gamma, lambda_), expected, atol=1e-9)


def test_gae_needs_a_value_for_each_reward() -> None:
    with pytest.raises(ValueError, match="expected 2 or 3 values for 2 rewards, got 1"):
        compute_gae([1, 2], [1])


def test_whole_sessions_come_with_their_advantages() -> None:
    made = SessionAwareProcessor()
    for session, count in (("long", 2), ("short", 1)):
        for _ in range(count):
            made.add_interaction(session, {"role": "user", "content": "x"})
            made.add_interaction(session, {"role": "tool", "content": "t"})
            made.add_interaction(
                session, {"role": "assistant", "content": "y", "reward": 1.0, "value": 0.5}
            )
    (only,) = made.get_training_trajectories(min_turns=3)
    assert only["session_id"] == "long"
    assert [i["role"] for i in only["interactions"]] == ["user", "assistant"] * 2
    assert only["advantages"] == compute_gae([0, 1, 0, 1], [0, 0.5, 0, 0.5]).tolist()
    with pytest.raises(ValueError, match="needs a number as its reward"):
        made.add_interaction("long", {"role": "assistant"})


def test_datasets_loads_the_rows(tmp_path: Path, home: Home) -> None:
    datasets = pytest.importorskip("datasets")
    half = replace(plot("served"), prompt="half \ud83d of it", answer="\ude00")
    live(home.store, [[half, plot("judged"), plot("tools")], [plot("failed"), plot("side")]])
    export_sessions(home.config, str(tmp_path / "turns.jsonl"), names=(), since=None, form="turns")
    rows = datasets.load_dataset(
        "json",
        data_files=str(tmp_path / "turns.jsonl"),
        cache_dir=str(tmp_path / "cache"),
        split="train",
    )
    assert rows["type"] == ["main", "main", "main", "side"]
    assert (rows["prompt"][0], rows["response"][0]) == ("half \ufffd of it", "\ufffd")
    assert rows["judged"] == [False, True, True, False]
    assert rows["score"] == [0, 1, 1, 0]
    assert all(len(row["response_ids"]) == len(row["logprobs"]) == len(row["mask"]) for row in rows)
    assert {f.dtype for name, f in rows.features.items() if name in ("score", "version")} == {
        "int64"
    }


def test_rows_need_a_file_of_lines(tmp_path: Path, home: Home) -> None:
    with pytest.raises(OpenClawError, match=r"one \.jsonl or \.parquet"):
        export_sessions(home.config, str(tmp_path / "out"), names=(), since=None, form="turns")


def test_only_the_selected_sessions_are_exported(tmp_path: Path, home: Home) -> None:
    late = {"session_id": "late", "turns": [main("x", "y", at=2000.0)]}
    early = {"session_id": "early", "turns": [main("x", "y", at=10.0)]}
    home.bring(put(tmp_path / "in.jsonl", late, early))
    for number, options in enumerate(
        ({"names": ("late",), "since": None}, {"names": (), "since": "1970-01-01T00:20"})
    ):
        out = tmp_path / f"out{number}"
        export_sessions(home.config, str(out), form="trajectories", **options)  # type: ignore[arg-type]
        assert [f.name for f in out.iterdir()] == ["late.json"]


def test_times_are_parsed() -> None:
    assert parse_since("2d", 200000.0) == 200000.0 - 2 * 86400
    with pytest.raises(OpenClawError, match="expected 30m, 12h, 7d, 2w, or a date"):
        parse_since("yesterday", 0.0)
