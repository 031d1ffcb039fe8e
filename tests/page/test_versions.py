"""The views of the versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.page.learned_home import make_home, view_request
from tests.store.world import policy

from openclaw_rl.page.lineage_graph import LANE_WIDTH, MAX_LANES, ROW_HEIGHT, draw_lineage
from openclaw_rl.page.templating import TemplateRenderer
from openclaw_rl.page.view import NotFound
from openclaw_rl.page.views import versions
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.status.version_words import (
    PolicyLine,
    VersionPlace,
    version_place,
    version_sentence,
)
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, probe_answers
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer
from openclaw_rl.store.lineage.version_list import ListedVersion
from openclaw_rl.types import PolicyState

LINE = PolicyLine(name="default", head=3, lineage=frozenset({3, 1, 0}), canary=6)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_home(tmp_path / "home")


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    with Store.open(config.store_path) as opened:
        yield opened


def render(template: str, data: Any) -> str:
    everywhere = {"sections": (), "path": "/ui/versions", "message": ""}
    return TemplateRenderer().render(template, {**everywhere, **data})


def listed(
    version: int, parent: int | None, state: PolicyState = PolicyState.LIVE
) -> ListedVersion:
    return ListedVersion(
        version=version,
        parent=parent,
        state=state,
        reason=None,
        reason_code=None,
        created_at=float(version),
    )


@pytest.mark.parametrize(
    ("version", "state", "code", "place", "sentence"),
    [
        (3, PolicyState.LIVE, None, VersionPlace.IN_USE, "in use: it answers"),
        (
            1,
            PolicyState.LIVE,
            None,
            VersionPlace.EARLIER,
            "version 3 is, which has learned on from it",
        ),
        (6, PolicyState.CANDIDATE, None, VersionPlace.ON_TRIAL, "a share of the conversations"),
        (7, PolicyState.CANDIDATE, None, VersionPlace.EXAMINED, "the gate is comparing it"),
        (
            2,
            PolicyState.REJECTED,
            ReasonCode.WORSE,
            VersionPlace.REFUSED,
            "the gate refused it, because because-words",
        ),
        (
            2,
            PolicyState.REJECTED,
            ReasonCode.CANNOT_TRAIN,
            VersionPlace.REFUSED,
            "its training failed",
        ),
        (2, PolicyState.REJECTED, ReasonCode.OUTDATED, VersionPlace.REFUSED, "it came too late"),
        (
            4,
            PolicyState.ROLLED_BACK,
            ReasonCode.ROLLED_BACK,
            VersionPlace.ROLLED_BACK,
            "it was rolled back (because-words)",
        ),
        (
            4,
            PolicyState.ROLLED_BACK,
            ReasonCode.SATISFACTION,
            VersionPlace.ROLLED_BACK,
            "rolled back automatically",
        ),
        (
            4,
            PolicyState.ROLLED_BACK,
            ReasonCode.PROMOTED,
            VersionPlace.ROLLED_BACK,
            "another version was promoted",
        ),
        (
            4,
            PolicyState.ROLLED_BACK,
            ReasonCode.TAKEN_BACK,
            VersionPlace.ROLLED_BACK,
            "you took back replies that it, or a version before it, had learned from.",
        ),
        (8, PolicyState.LIVE, None, VersionPlace.LEFT, "does not contain it"),
    ],
)
def test_a_sentence_says_why_a_version_is_in_use_or_not(
    version: int, state: PolicyState, code: ReasonCode | None, place: VersionPlace, sentence: str
) -> None:
    made = replace(listed(version, 1, state), reason="because-words", reason_code=code)
    assert version_place(made, LINE) is place
    assert sentence in version_sentence(made, LINE)


def test_the_list_shows_each_version_with_its_state(store: Store, config: Config) -> None:
    with store.read() as conn:
        data = versions.collect_versions(view_request(conn, config))
    assert [(row["version"], row["place"].value) for row in data["rows"]] == [
        (5, "rolled back"),
        (4, "rolled back"),
        (3, "in use"),
        (2, "refused"),
        (1, "earlier"),
        (0, "earlier"),
    ]
    assert [row["trained"] for row in data["rows"]] == [0, 1, 1, 0, 1, 0]
    assert data["rows"][-1]["answered"] == 6
    html = render("versions.html", data)
    assert html.count('href="/ui/versions/2"') == 2
    assert 'aria-label="Version 2: refused"' in html
    assert "it is worse than the head in form" in html


def test_versions_are_shown_in_pages_and_by_policy(store: Store, config: Config) -> None:
    with store.write() as conn:
        for version in range(6, 80):
            policies.insert_version(conn, policy(version, 3), (), PolicyState.REJECTED)
        own = replace(policy(80, 0), name="agent:key:coder")
        policies.insert_version(conn, own, (), PolicyState.LIVE)
    with store.read() as conn:
        first = versions.collect_versions(view_request(conn, config))
        second = versions.collect_versions(view_request(conn, config, before=str(first["next"])))
        other = versions.collect_versions(view_request(conn, config, policy="agent:key:coder"))
        with pytest.raises(NotFound):
            versions.collect_versions(view_request(conn, config, policy="nobody"))
    shown = [row["version"] for data in (first, second) for row in data["rows"]]
    assert shown == list(range(79, -1, -1))
    assert second["next"] is None
    assert [row["version"] for row in other["rows"]] == [80]
    assert "agent:key:coder (1)" in render("versions.html", other)


def test_the_page_of_a_refused_version_says_why_it_is_not_in_use(
    store: Store, config: Config
) -> None:
    changed = ProbeAnswer(
        version=2,
        probe="p1",
        head=1,
        question="How much is <b>1</b> plus 1?",
        head_answer="It is 2.",
        candidate_answer="It is 3.",
        verdict=-1.0,
    )
    with store.write() as conn:
        probe_answers.record_answers(conn, [changed])
    with store.read() as conn:
        html = render(
            "version.html", versions.collect_version(view_request(conn, config, version="2"))
        )
    assert (
        "Version 2 is not in use: the gate refused it, because it is worse than the head in form."
        in html
    )
    assert "[only after: </span>3" in html
    assert "&lt;b&gt;1" in html
    assert "Compare replies" not in html
    assert "roll-back" not in html


def test_the_page_of_a_version_offers_what_can_be_done_with_it(
    store: Store, config: Config
) -> None:
    def acts_of(version: int) -> set[str]:
        with store.read() as conn:
            data = versions.collect_version(view_request(conn, config, version=str(version)))
        html = render("version.html", data)
        names = ("roll-back", "promote-version", "pin-version", "comparison")
        return {name for name in names if f"{name}?" in html or f'/{name}"' in html}

    assert acts_of(0) == {"roll-back"}
    assert acts_of(1) == {"roll-back", "pin-version", "comparison"}
    assert acts_of(2) == set()
    assert acts_of(3) == {"pin-version", "comparison"}
    assert acts_of(4) == {"promote-version", "pin-version", "comparison"}


def test_a_version_shows_its_turns_and_whom_it_answered(store: Store, config: Config) -> None:
    with store.read() as conn:
        data = versions.collect_version(view_request(conn, config, version="1"))
        base = versions.collect_version(view_request(conn, config, version="0"))
        prompts = versions.collect_comparison(view_request(conn, config, version="1"))
        for missing in ("99", "-1"):
            with pytest.raises(NotFound, match="newest is 5"):
                versions.collect_version(view_request(conn, config, version=missing))
    assert data["turns"] == [{"turn": "turn-4", "is_practice": False, "asked": "this is turn-4"}]
    assert base["people"] == [("agent", "", 6)]
    assert prompts["turns"] == ["turn-4"]
    assert "this is turn-4" in render("version.html", data)
    assert "answers-1" in render("comparison.html", prompts)


def test_the_line_of_the_version_in_use_is_the_first_lane() -> None:
    shown = [listed(5, 4), listed(4, 3), listed(3, 1), listed(2, 1), listed(1, 0), listed(0, None)]
    graph = draw_lineage(shown, {3, 1, 0})
    lanes = [(node.x - LANE_WIDTH // 2) // LANE_WIDTH for node in graph.nodes]
    assert lanes == [1, 1, 0, 1, 0, 0]
    assert graph.height == 6 * ROW_HEIGHT
    assert len(graph.paths) == 5


def test_a_parent_on_another_page_is_below_and_many_branches_share_a_lane() -> None:
    shown = [listed(version, 1) for version in range(30, 10, -1)]
    graph = draw_lineage(shown, {1, 0})
    assert graph.width == MAX_LANES * LANE_WIDTH
    assert all(path.endswith(f"V{graph.height}") for path in graph.paths)
    assert draw_lineage([], {0}).nodes == []
