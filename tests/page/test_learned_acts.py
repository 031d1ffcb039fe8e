"""Acts on lessons and versions leave the same rows by command and by click."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.page.learned_home import act_request, copy_home, make_home, rows_of, view_request

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import OpenClawError
from openclaw_rl.page.acts import learned as learned_acts
from openclaw_rl.page.acts import versions as version_acts
from openclaw_rl.page.view import ActPlan, InvalidForm, PageAct
from openclaw_rl.settings.load import Config
from openclaw_rl.store.acts import ActActor, ActKind, newest_acts
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons

ACTS: Mapping[str, PageAct] = {
    act.path.removeprefix("/ui/acts/"): act for act in (*learned_acts.ACTS, *version_acts.ACTS)
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_home(tmp_path / "home")


def run(config: Config, arguments: Sequence[str]) -> None:
    done = CliRunner().invoke(cli, [*arguments, "--home", config.home])
    assert done.exit_code == 0, done.output


def plan_of(config: Config, name: str, params: Mapping[str, str]) -> ActPlan:
    with Store.open(config.store_path) as store, store.read() as conn:
        return ACTS[name].plan(view_request(conn, config, **params))


def click(config: Config, name: str, params: Mapping[str, str], **inputs: str) -> str:
    """Open the dialog of an act and confirm it. Returns what the page says then."""
    plan = plan_of(config, name, params)
    form = {field.name: field.value for field in plan.inputs if field.kind != "checkbox"}
    with Store.open(config.store_path) as store:
        request = act_request(store, config, **{**plan.fields, **form, **inputs})
        return ACTS[name].apply(request).message


SAME = [
    (["lessons", "edit", "aa", "At most two sentences."], "edit-lesson", {"lesson": "aa"}, "text"),
    (["lessons", "pin", "aa"], "pin-lesson", {"lesson": "aa"}, ""),
    (["lessons", "pin", "bb"], "pin-lesson", {"lesson": "bb"}, ""),
    (["lessons", "unpin", "aa"], "unpin-lesson", {"lesson": "aa"}, ""),
    (["lessons", "share", "aa"], "share-lesson", {"lesson": "aa"}, ""),
    (["lessons", "forget", "aa", "--yes"], "forget-lesson", {"lesson": "aa"}, ""),
    (["policies", "pin", "3"], "pin-version", {"version": "3"}, ""),
    (["policies", "freeze"], "freeze-training", {}, ""),
    (["rollback", "1", "--yes"], "roll-back", {"version": "1"}, ""),
    (["rollback", "0", "--yes", "--learn-again"], "roll-back", {"version": "0"}, "learn_again"),
    (["policies", "promote", "5", "--yes"], "promote-version", {"version": "5"}, ""),
]


@pytest.mark.parametrize(("command", "name", "params", "field"), SAME)
def test_a_click_leaves_the_rows_of_the_command(
    config: Config,
    tmp_path: Path,
    command: list[str],
    name: str,
    params: dict[str, str],
    field: str,
) -> None:
    other = copy_home(config, tmp_path / "other")
    before = rows_of(config)
    run(config, command)
    values = {"text": "At most two sentences.", "learn_again": "yes"}
    assert click(other, name, params, **({field: values[field]} if field else {}))
    assert rows_of(config) == rows_of(other)
    assert rows_of(config) != before
    actors = []
    for home in (config, other):
        with Store.open(home.store_path) as store, store.read() as conn:
            (act,) = newest_acts(conn, 10)
            actors.append(act.actor)
            assert act.outcome
    assert actors == [ActActor.COMMAND, ActActor.PAGE]


def test_pins_and_freezes_are_ended_by_a_click_as_by_a_command(
    config: Config, tmp_path: Path
) -> None:
    run(config, ["policies", "pin", "3"])
    run(config, ["policies", "freeze"])
    other = copy_home(config, tmp_path / "other")
    run(config, ["policies", "unpin", "3"])
    run(config, ["policies", "unfreeze"])
    click(other, "unpin-version", {"version": "3"})
    click(other, "unfreeze-training", {})
    assert rows_of(config) == rows_of(other)


def test_the_audit_has_no_words_of_a_forgotten_lesson(config: Config) -> None:
    run(config, ["lessons", "edit", "aa", "Secret words."])
    run(config, ["lessons", "forget", "aa", "--yes"])
    acts = rows_of(config)["acts"]
    assert len(acts) == 2
    assert not [row for row in acts if "Secret" in row or "short" in row]


def test_the_dialog_says_what_forgetting_does(config: Config) -> None:
    plan = plan_of(config, "forget-lesson", {"lesson": "aa"})
    assert plan.is_dangerous
    assert plan.details == [
        "It leaves prompts at once.",
        "The replies to which it was said do not give it again.",
        "In force again, for agent agent: “Give long, detailed answers.”",
        "What the weights have learned from its practice so far stays.",
    ]
    assert plan.follow.endswith("?lesson=aa")


def test_the_dialog_says_what_a_rollback_does(config: Config) -> None:
    plan = plan_of(config, "roll-back", {"version": "0"})
    assert "No longer in use: versions 3, 1. They can be promoted later." in plan.details
    assert any("trained on 2 turns" in detail for detail in plan.details)


def test_a_rollback_is_refused_if_the_head_has_moved_since_the_dialog(config: Config) -> None:
    plan = plan_of(config, "roll-back", {"version": "0"})
    run(config, ["rollback", "1", "--yes"])
    before = rows_of(config)
    with Store.open(config.store_path) as store, pytest.raises(InvalidForm, match="changed"):
        ACTS["roll-back"].apply(act_request(store, config, **plan.fields))
    assert rows_of(config) == before


@pytest.mark.parametrize("text", ["", "  ", "a\x00b", "x" * 1201])
def test_a_text_that_can_be_no_lesson_is_refused(config: Config, text: str) -> None:
    before = rows_of(config)
    with Store.open(config.store_path) as store, pytest.raises(OpenClawError, match="text"):
        ACTS["edit-lesson"].apply(act_request(store, config, lesson="aa", text=text))
    assert rows_of(config) == before


@pytest.mark.parametrize("value", ["", "x", "-1", "٣", "9" * 12])
def test_a_form_without_a_version_is_refused(config: Config, value: str) -> None:
    for name in ("pin-version", "unpin-version", "roll-back", "promote-version"):
        with Store.open(config.store_path) as store, pytest.raises(OpenClawError, match="number"):
            ACTS[name].apply(act_request(store, config, version=value))


def test_an_unknown_policy_gets_no_head(config: Config) -> None:
    before = rows_of(config)
    form = {"version": "0", "policy": "agent:nobody", "head": "3", "turns": "2"}
    with Store.open(config.store_path) as store, pytest.raises(OpenClawError, match="no policy"):
        ACTS["roll-back"].apply(act_request(store, config, **form))
    assert rows_of(config) == before


def test_each_act_has_a_kind_of_the_audit(config: Config) -> None:
    click(config, "share-lesson", {"lesson": "aa"})
    with Store.open(config.store_path) as store, store.read() as conn:
        (act,) = newest_acts(conn, 10)
        shared = lessons.get(conn, "aa")
    assert (act.kind, act.target) == (ActKind.SHARE_LESSON, "aa")
    assert shared is not None
    assert shared.is_shared
