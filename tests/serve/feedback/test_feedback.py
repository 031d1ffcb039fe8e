"""Feedback over HTTP: values, givers, repetition, lists and retraction; through collect and judge to its verdict."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import insert
from tests.serve.conftest import KEY, OTHER_KEY, USER, Answer, Site

from openclaw_rl.collect.worker import Collector
from openclaw_rl.judge import worker as judge_worker
from openclaw_rl.store import schema, turns
from openclaw_rl.store.lessons import lessons
from openclaw_rl.types import TurnState, Verdict

WITHIN = 240.0


def ask(site: Site, messages: Any = (USER,), said: str = "Hello there.") -> str:
    site.script.say(said)
    return str(site.client().chat.completions.create(model="openclaw", messages=list(messages)).id)


def send(site: Site, headers: dict[str, str] | None = None, key: str = KEY, **body: Any) -> Answer:
    given = {"Authorization": f"Bearer {key}"} | (headers or {})
    return site.http.post("/v1/feedback", body, given)


def listed(site: Site, query: str = "", key: str = KEY) -> list[Any]:
    answer = site.http.get(f"/v1/feedback{query}", {"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


def judge(site: Site) -> None:
    """Let collect and judge do what there is to do."""
    collector = Collector(site.store, site.config.collect)
    while collector.step():
        pass

    async def main() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(judge_worker.run(site.config, stop=stop))
        await _until(lambda: asyncio.to_thread(_unjudged, site), task)
        stop.set()
        await asyncio.wait_for(task, WITHIN)

    asyncio.run(main())


async def _until(get: Callable[[], Awaitable[int]], task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(WITHIN):
        while await get():
            assert not task.done()
            await asyncio.sleep(0.02)


def _unjudged(site: Site) -> int:
    with site.store.read() as conn:
        return turns.count_unjudged(conn)[0]


def verdict(site: Site, turn: str) -> Verdict:
    with site.store.read() as conn:
        found = turns.current_verdict(conn, turn)
    assert found is not None
    return found


def test_values_of_many_kinds_are_stored_as_scores(site: Site) -> None:
    target = ask(site)
    for value, score in ((":+1:", 1), ("4/5", 1), ({"stars": 1, "of": 5}, -1), (False, -1)):
        answer = send(site, target=target, score=value)
        assert (answer.status_code, answer.json()["score"]) == (200, score)
    assert send(site, id=target, score=0.2, scale="0..1").json()["score"] == -1
    assert send(site, id=target, thumbs="👎").json()["score"] == -1
    refused = send(site, id=target, score=0.4)
    assert refused.status_code == 400
    assert 'send scale: "0..1"' in refused.json()["error"]["message"]
    assert "4/5" in send(site, id=target, score="meh").json()["error"]["message"]


def test_a_sign_without_an_opinion_is_not_recorded(site: Site) -> None:
    target = ask(site)
    answer = send(site, target=target, score=":eyes:")
    assert (answer.status_code, answer.json()["id"], answer.json()["score"]) == (200, None, None)
    assert listed(site) == []
    noted = send(site, target=target, score=":eyes:", comment="Look at this.")
    assert noted.json()["id"] is not None


def test_a_key_brings_feedback_once(site: Site) -> None:
    target = ask(site)
    first = send(site, {"Idempotency-Key": "k1"}, target=target, score=1)
    again = send(site, {"Idempotency-Key": "k1"}, score=1, target=target)
    in_body = send(site, target=target, score=1, idempotency_key="k1")
    assert first.json() == again.json() == in_body.json()
    assert len(listed(site)) == 1
    other = send(site, {"Idempotency-Key": "k1"}, target=target, score=-1)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    both = send(site, {"Idempotency-Key": "k1"}, target=target, score=1, idempotency_key="k2")
    assert both.status_code == 400
    elsewhere = send(
        site, {"Idempotency-Key": "k1"}, OTHER_KEY, match={"text": "Hello there."}, score=1
    )
    assert elsewhere.status_code == 404, "another key's replies and keys"


def test_a_repeated_request_keeps_the_reply_that_it_had_matched(site: Site) -> None:
    target = ask(site)
    body = {"match": {"text": "Hello there."}, "score": 1, "idempotency_key": "k"}
    first = send(site, **body).json()
    ask(site)
    assert send(site, **body).json() == first
    assert first["target"] == target


def test_lists_are_filtered_and_come_in_pages(site: Site) -> None:
    target = ask(site)
    other = str(
        site.http.post(
            "/v1/chat/completions",
            {"messages": [USER], "user": "ann"},
            {"Authorization": f"Bearer {KEY}", "X-Session-Id": "s1"},
        ).json()["id"]
    )
    ids = [send(site, target=target, score=1, by=f"p{n}").json()["id"] for n in range(3)]
    ids.append(send(site, target=other, score=-1, by="p0", comment="no").json()["id"])
    assert [item["id"] for item in listed(site)] == ids[::-1]
    assert [item["id"] for item in listed(site, f"?target={target}")] == ids[2::-1]
    assert [item["id"] for item in listed(site, "?session=s1")] == ids[3:]
    assert [item["id"] for item in listed(site, "?user=ann")] == ids[3:]
    assert [item["id"] for item in listed(site, "?by=p0")] == [ids[3], ids[0]]
    first = site.http.get("/v1/feedback?limit=3").json()
    assert (first["has_more"], first["last_id"]) == (True, ids[1])
    rest = site.http.get(f"/v1/feedback?limit=3&after={first['last_id']}").json()
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (ids[:1], False)
    assert listed(site, key=OTHER_KEY) == []
    assert site.http.get("/v1/feedback?limit=0").status_code == 400
    one = site.http.get(f"/v1/feedback/{ids[3]}").json()
    assert (one["user"], one["session"], one["comment"], one["by"]) == ("ann", "s1", "no", "p0")
    hidden = site.http.get(f"/v1/feedback/{ids[3]}", {"Authorization": f"Bearer {OTHER_KEY}"})
    assert hidden.status_code == 404


def test_the_key_is_needed_everywhere(site: Site) -> None:
    for method, path in itertools.product(("GET", "DELETE"), ("/v1/feedback/fb-1",)):
        assert site.http.send(method, path, headers={}).status_code == 401
    assert site.http.send("GET", "/v1/feedback", headers={}).status_code == 401


def test_a_thumb_on_a_text_arrives_as_a_verdict_and_is_taken_back(site: Site) -> None:
    said = "Paris is the capital of France."
    target = ask(site, said=said)
    complaint = [USER, {"role": "assistant", "content": said}, {"role": "user", "content": "no"}]
    ask(site, complaint)
    judge(site)
    by_words = verdict(site, target)
    assert not by_words.explicit

    given = send(
        site, match={"text": said}, score=":+1:", correction="Name the river, too.", by="ann"
    ).json()
    assert given["target"] == target
    judge(site)
    explicit = verdict(site, target)
    assert (explicit.explicit, explicit.score, explicit.hints) == (
        True,
        1,
        ("Name the river, too.",),
    )
    with site.store.read() as conn:
        assert [one.text for one in lessons.list_lessons(conn)] == ["Name the river, too."]
    assert listed(site)[0]["counts"]

    gone = site.http.send("DELETE", f"/v1/feedback/{given['id']}")
    assert gone.json() == {
        "id": given["id"],
        "object": "feedback",
        "deleted": True,
        "target": target,
        "trained_versions": [],
    }
    judge(site)
    again = verdict(site, target)
    assert (again.explicit, again.score, again.hints) == (False, by_words.score, by_words.hints)
    with site.store.read() as conn:
        assert turns.get(conn, target).state is TurnState.JUDGED  # type: ignore[union-attr]
        assert lessons.list_lessons(conn) == []
    assert listed(site) == []
    (kept,) = listed(site, "?retracted=true")
    assert (kept["counts"], kept["correction"], kept["score"]) == (False, None, 1)
    assert site.http.send("DELETE", f"/v1/feedback/{given['id']}").status_code == 200, "idempotent"


def test_without_other_evidence_nothing_is_left_to_train_on(site: Site) -> None:
    target = ask(site)
    given = send(site, target=target, score=-1).json()
    judge(site)
    assert verdict(site, target).score == -1
    site.http.send("DELETE", f"/v1/feedback/{given['id']}")
    judge(site)
    assert verdict(site, target).score is None
    with site.store.read() as conn:
        assert conn.exec_driver_sql("SELECT signal FROM turns").scalar_one() == 0


def test_feedback_that_is_taken_back_before_it_counts_leaves_no_trace(site: Site) -> None:
    target = ask(site)
    given = send(site, target=target, score=-1).json()
    site.http.send("DELETE", f"/v1/feedback/{given['id']}")
    judge(site)
    with site.store.read() as conn:
        assert turns.current_reaction(conn, target) is None


def test_people_are_counted_once_each(site: Site) -> None:
    target = ask(site)
    for by, score in (("ann", 1), ("bob", -1), ("cem", -1), ("bob", 1)):
        send(site, target=target, score=score, by=by)
    judge(site)
    assert verdict(site, target).score == 1
    retracted = send(site, target=target, retract=True, by="ann")
    assert [item["deleted"] for item in retracted.json()["data"]] == [True]
    judge(site)
    assert verdict(site, target).score == 0
    assert send(site, target=target, retract=True, by="ann").status_code == 404
    assert len(send(site, match={"text": "Hello there."}, retract=True).json()["data"]) == 3


def test_feedback_is_taken_back_by_its_key_and_given_again(site: Site) -> None:
    target = ask(site)
    body = {"target": target, "score": 1, "idempotency_key": "reaction-1"}
    first = send(site, **body).json()
    gone = send(site, retract=True, idempotency_key="reaction-1")
    assert gone.json()["data"][0]["id"] == first["id"]
    assert send(site, retract=True, idempotency_key="reaction-1").status_code == 404
    assert send(site, **body).json()["id"] != first["id"]
    assert send(site, retract=True).status_code == 400


def test_what_was_trained_on_it_is_named_with_the_command_that_undoes_it(
    site: Site, tmp_path: Any
) -> None:
    target = ask(site)
    given = send(site, target=target, score=1).json()
    judge(site)
    version = site.publish(tmp_path / "p").version
    with site.store.write() as conn:
        conn.execute(
            insert(schema.uses), {"policy": version, "turn": target, "number": 1, "place": 0}
        )
    assert listed(site)[0]["trained_versions"] == [version]
    gone = site.http.send("DELETE", f"/v1/feedback/{given['id']}").json()
    assert gone["trained_versions"] == [version]
    assert gone["undo"] == f"openclaw-rl undo --turn {target}"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_unknown_feedback(site: Site, method: str) -> None:
    answer = site.http.send(method, "/v1/feedback/fb-none")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
