"""Which turns of an episode are its steps, as programs really go on: retries, summaries, sub-agents, overflows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serve.conftest import TOOLS, Site, Start, wait_for
from tests.serve.episodes.conftest import EpisodeRun, Open, claimable, collect, judge

LONG = "the files are listed, and the third of them is the one that is broken"
SUMMARY = "Summary: three files were listed, and the third of them has to be repaired."


def steps_after(site: Site, run: EpisodeRun, reward: float = 1.0) -> dict[str, int | None]:
    collect(site.store)
    run.end(reward)
    collect(site.store)
    return run.steps()


def test_a_retry_after_a_lost_reply_counts_once(site: Site, open_episode: Open) -> None:
    """The program did not see its second reply, and asks again; it goes on with the third."""
    run = open_episode("e")
    first = run.step("list the files", "done: " + LONG)
    run.messages.append({"role": "user", "content": "and now?"})
    site.script.say("this reply was lost on its way")
    lost = run.send({"messages": run.messages}).json()["id"]
    run.messages.pop()
    again, last = (
        run.step("and now?", "here it is again, and different"),
        run.step("go on", "so it ends"),
    )
    assert steps_after(site, run) == {first: 0, lost: None, again: 1, last: 2}


def test_a_reply_that_failed_is_no_step(site: Site, open_episode: Open) -> None:
    run = open_episode("e")
    first = run.step("list the files", LONG)
    site.engine.refuse = "broken"
    assert (
        run.send({"messages": [*run.messages, {"role": "user", "content": "next"}]}).status_code
        == 500
    )
    site.engine.refuse = None
    second = run.step("next", "now it works, and this is what came of it")
    steps = steps_after(site, run)
    assert [steps[first], steps[second], sorted(map(str, steps.values()))] == [
        0,
        1,
        ["0", "1", "None"],
    ]


@pytest.mark.parametrize("place", ["the first message", "a message behind the instruction"])
def test_a_summary_branch_has_no_index_and_the_chain_goes_on_behind_it(
    site: Site, open_episode: Open, place: str
) -> None:
    """The program has its history summarised, and goes on with the summary alone."""
    run = open_episode("e")
    chain = [
        run.step("list the files", LONG),
        run.step("look at the third", "the third file has a broken line in it"),
    ]
    site.script.say(SUMMARY)
    asked = [
        *run.messages,
        {"role": "user", "content": "Summarise all that has happened so far, for yourself."},
    ]
    summary = run.send({"messages": asked}).json()["id"]
    told = f"You were working on a task. What has happened so far:\n{SUMMARY}\nContinue."
    run.messages = [{"role": "user", "content": told}] if place == "the first message" else [
        {"role": "user", "content": "repair what is broken"}, {"role": "user", "content": told}
    ]  # fmt: skip
    site.script.say("so I repair the third file now")
    answer = run.send({"messages": run.messages}).json()
    run.messages.append(
        {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    )
    chain += [answer["id"], run.step("ok", "all is repaired")]
    assert steps_after(site, run) == {turn: step for step, turn in enumerate(chain)} | {
        summary: None
    }


def test_a_sub_agent_has_no_index(site: Site, open_episode: Open) -> None:
    """Its conversation is another one under the same key, between two turns of the main one."""
    run = open_episode("e")
    first = run.step("do the task", "I let a helper look at the files first of all")
    helper = EpisodeRun(site, "e", run.key)
    beside = [
        helper.step("look at the files", "there are three"),
        helper.step("which?", "a, b and c"),
    ]
    last = run.step("the helper says: a, b and c", "then it is c")
    assert steps_after(site, run) == {first: 0, last: 1} | dict.fromkeys(beside)


@pytest.mark.parametrize("reply", ["act {}", "ok"])
def test_a_context_that_is_cut_at_its_begin_stays_one_chain(
    site: Site, open_episode: Open, reply: str
) -> None:
    """Many agents drop their oldest messages; replies are short, so that their text alone would prove little."""
    run = open_episode("e")
    turns = [run.step(f"observation {n}", reply.format(n)) for n in range(6)]
    for n in (6, 7):
        run.messages = [run.messages[0], *run.messages[-3:]]
        turns.append(run.step(f"observation {n}", reply.format(n)))
    assert steps_after(site, run) == {turn: step for step, turn in enumerate(turns)}


def test_a_history_in_one_message_is_one_chain(site: Site, open_episode: Open) -> None:
    """The program sends no assistant messages, but a text with all that was said."""
    run = open_episode("e")
    turns, text = [], "Task: repair the files."
    for n in range(3):
        site.script.say(said := f"in step {n} I look at the file with the number {n}")
        turns.append(run.send({"messages": [{"role": "user", "content": text}]}).json()["id"])
        text += f"\nYou: {said}\nResult: nothing {n}"
    assert steps_after(site, run) == {turn: step for step, turn in enumerate(turns)}


def test_a_context_that_overflows_ends_with_its_outcome(start: Start) -> None:
    site = start(context_length=200, settings={"engine.max_context": 200})
    answer = site.http.send(
        "PUT", "/v1/episodes/e", b'{"task": "t", "group": {"id": "g", "size": 2}, "max_steps": 9}'
    )
    run = EpisodeRun(site, "e", answer.json()["api_key"])
    turns = [run.step("a word", "a few words"), run.step("a word", "and some more")]
    refused = run.send({"messages": [*run.messages, {"role": "user", "content": "word " * 400}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    assert steps_after(site, run, 0.0) == {turns[0]: 0, turns[1]: 1}


def test_tool_calls_are_linked_and_the_last_step_has_no_observation(
    site: Site, open_episode: Open
) -> None:
    run = open_episode("e")
    site.script.say(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    )
    run.messages.append({"role": "user", "content": "the weather in Rome?"})
    reply = run.send({"messages": run.messages, "tools": TOOLS}).json()
    message = reply["choices"][0]["message"]
    call = message["tool_calls"][0]["id"]
    run.messages += [message, {"role": "tool", "tool_call_id": call, "content": "sunny"}]
    site.script.say("It is sunny.")
    last = run.send({"messages": run.messages, "tools": TOOLS}).json()["id"]
    assert steps_after(site, run) == {reply["id"]: 0, last: 1}
    with site.store.read() as conn:
        found = conn.exec_driver_sql(
            "SELECT turn, how FROM reactions ORDER BY turn = ?", (last,)
        ).all()
    assert [tuple(row) for row in found] == [(reply["id"], "exact"), (last, "outcome")]


def test_a_swap_of_the_policy_in_mid_episode_is_one_chain_of_two_versions(
    site: Site, open_episode: Open, tmp_path: Path
) -> None:
    """Each turn has the version that sampled it; the outcome reaches both."""
    other, run = open_episode("f"), open_episode("e")
    other.step("go", "the other one")
    turns = [run.step("go", "before the swap")]
    policy = site.publish(tmp_path)
    wait_for(lambda: site.http.get("/readyz").json()["version"], lambda v: v == policy.version)
    turns.append(run.step("on", "after the swap"))
    collect(site.store)
    run.end(1.0), other.end(0.0)
    collect(site.store)
    judge(site.store)
    (group,) = claimable(site.store)
    found = [
        (i.turn.id, i.episode.step, i.exchange.request.version)
        for i in group
        if i.episode and i.episode.reward
    ]
    assert found == [(turns[0], 0, 0), (turns[1], 1, policy.version)]


def test_a_reply_in_flight_at_the_outcome_is_dropped(start: Start) -> None:
    """The program was killed; its last reply is not part of what was scored."""
    site = start()
    answer = site.http.send(
        "PUT", "/v1/episodes/e", b'{"task": "t", "group": {"id": "g", "size": 2}}'
    )
    run = EpisodeRun(site, "e", answer.json()["api_key"])
    first = run.step("go", "one two")
    # So long that the outcome comes first, also on a busy machine.
    site.engine.delay = 5.0
    future = site.client(run.key).chat.completions.create(
        model="openclaw",
        messages=[*run.messages, {"role": "user", "content": "on"}],
        stream=True,  # type: ignore[list-item]
    )
    late = next(iter(future)).id
    run.end(1.0)
    site.engine.delay = 0.0
    collect(site.store)
    assert site.ended(late).reply is not None
    collect(site.store)
    shown = {turn["id"]: turn for turn in run.shown()["turns"]}
    assert (shown[first]["step"], shown[late]["step"]) == (0, None)
    assert shown[late]["drop_reason"] == "its episode ended before the reply was complete"
