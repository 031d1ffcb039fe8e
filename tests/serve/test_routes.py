"""Models, feedback, health, readiness, metrics."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serve.conftest import KEY, OTHER_KEY, USER, Answer, Site, Start, wait_for

from openclaw_rl.store import heartbeats
from openclaw_rl.store.lineage import head_moves, retraining
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.types import PolicyState, RepeatedBatch


def test_models(site: Site, tmp_path: Path) -> None:
    site.publish(tmp_path / "p")
    site.publish(tmp_path / "p", state=PolicyState.REJECTED)
    names = [m.id for m in site.client().models.list()]
    assert names == ["openclaw", "openclaw@1", "openclaw@0"]
    assert site.client().models.retrieve("openclaw@0").owned_by == "openclaw-rl"
    with pytest.raises(openai.NotFoundError):
        site.client().models.retrieve("openclaw@2")


def feedback(site: Site, key: str = KEY, **body: Any) -> Answer:
    return site.http.post("/v1/feedback", body, {"Authorization": f"Bearer {key}"})


def test_feedback_is_durable_before_it_is_acknowledged(site: Site) -> None:
    target = site.client().chat.completions.create(model="openclaw", messages=[USER]).id
    answer = feedback(site, id=target, thumbs="down", comment="too long", correction="Be short.")
    assert answer.status_code == 200
    with site.store.read() as conn:
        row = conn.exec_driver_sql(
            "SELECT id, target, score, comment, correction FROM feedback"
        ).one()
    assert tuple(row) == (answer.json()["id"], target, -1, "too long", "Be short.")
    assert feedback(site, id=target, score=0).status_code == 200


def test_feedback_that_is_wrong(site: Site) -> None:
    target = site.client().chat.completions.create(model="openclaw", messages=[USER]).id
    assert feedback(site, id="chatcmpl-none", score=1).status_code == 404
    assert feedback(site, key=OTHER_KEY, id=target, score=1).status_code == 404, (
        "another key's reply"
    )
    for param, body in (
        ("score", {"id": target}),
        ("score", {"id": target, "score": 2}),
        ("score", {"id": target, "score": "so so"}),
        ("thumbs", {"id": target, "thumbs": "sideways"}),
        ("thumbs", {"id": target, "thumbs": "up", "score": -1}),
        ("comment", {"id": target, "comment": 5}),
        ("id", {"score": 1}),
    ):
        answer = feedback(site, **body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param, answer.text
    with site.store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM feedback").scalar_one() == 0


def test_ready_and_health(site: Site) -> None:
    wait_for(lambda: site.http.get("/readyz").status_code, lambda s: s == 200)
    assert site.http.get("/readyz").json() == {
        "ready": True,
        "reasons": [],
        "version": 0,
        "head": 0,
    }
    assert site.http.get("/healthz").json() == {"status": "ok"}


def test_a_parked_worker_is_named_and_serving_stays_ready(site: Site) -> None:
    wait_for(lambda: site.http.get("/readyz").status_code, lambda s: s == 200)
    heartbeats.write_heartbeat(site.store, "judge", "parked: boom", heartbeats.PARKED)
    heartbeats.write_heartbeat(site.store, "train", "waiting")
    found = site.http.get("/readyz")
    assert (found.status_code, found.json()["ready"]) == (200, True)
    assert found.json()["reasons"] == ["judge: parked: boom"]


def test_an_undo_in_progress_is_named_and_serving_stays_ready(site: Site) -> None:
    wait_for(lambda: site.http.get("/readyz").status_code, lambda s: s == 200)
    with site.store.write() as conn:
        retraining.replace_batches(conn, DEFAULT_NAME, [RepeatedBatch(repeats=0, turns=("a",))] * 2)
    found = site.http.get("/readyz").json()
    report = "an undo is in progress: 2 batches left to train on again; version 0 answers"
    assert (found["ready"], found["reasons"]) == (True, [report])


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_reply_counts_once(start: Start, stream: bool) -> None:
    site = start(delay=0.02)
    site.script.say("one two three " * 20)

    def counts() -> list[str]:
        return [
            line
            for line in site.http.get("/metrics").text.splitlines()
            if line.startswith("openclaw_replies_t")
        ]

    body = {"messages": [USER], "stream": stream}
    connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=240)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {KEY}"}
    )
    wait_for(lambda: site.engine.running[0], lambda n: n == 1)
    if stream:
        assert connection.getresponse().read(10)
    connection.close()
    assert wait_for(counts, bool) == [
        'openclaw_replies_total{outcome="cancelled",route="chat"} 1.0'
    ]


def test_metrics(site: Site) -> None:
    site.client().chat.completions.create(model="openclaw", messages=[USER])
    text = site.http.get("/metrics").text
    assert 'openclaw_replies_total{outcome="stop",route="chat"} 1.0' in text
    assert f"openclaw_response_tokens_total {len(site.script.ids)}.0" in text
    assert "openclaw_running 0.0" in text


def test_metrics_of_the_newest_version(site: Site, tmp_path: Path) -> None:
    """Under the names of W&B, with underscores; a version that was rejected or rolled back is not told of."""

    def told() -> dict[str, float]:
        lines = [
            line
            for line in site.http.get("/metrics").text.splitlines()
            if line.startswith("openclaw_train_")
        ]
        return {
            name.removeprefix("openclaw_train_"): float(value)
            for name, value in map(str.split, lines)
        }

    site.publish(
        tmp_path / "p",
        metrics={"loss/total": 0.5, "gradient/norm": 2.0, "masked/gap": 0.25, "kl/mu": 0.1},
    )
    expected = {
        "version": 1,
        "loss_total": 0.5,
        "gradient_norm": 2.0,
        "masked_gap": 0.25,
        "kl_mu": 0.1,
    }
    wait_for(told, lambda m: m == expected)
    site.publish(tmp_path / "p", state=PolicyState.REJECTED, metrics={"loss/total": 9.0})
    site.publish(tmp_path / "p", metrics={"loss/total": 0.25})
    wait_for(told, lambda m: m == {"version": 3, "loss_total": 0.25})
    with site.store.write() as conn:
        head_moves.roll_back(conn, to=0, reason="worse", at=time.time())
    wait_for(told, lambda m: m == {"version": 0})


def test_metrics_count_the_versions_by_state(site: Site, tmp_path: Path) -> None:
    site.publish(tmp_path / "p")
    with site.store.write() as conn:
        head_moves.roll_back(conn, to=0, reason="satisfaction fell", at=time.time(), automatic=True)
    line = 'openclaw_policy_versions{state="rolled_back"} 1.0'
    wait_for(lambda: line in site.http.get("/metrics").text.splitlines(), bool)


def test_every_response_has_a_request_id(site: Site) -> None:
    def request_id(path: str, sent: str | None = None, body: object = None) -> str:
        headers = {"api-key": KEY} | ({"X-Request-Id": sent} if sent else {})
        return site.http.send("POST", path, json.dumps(body).encode(), headers).headers[
            "x-request-id"
        ]

    stream = {"messages": [USER], "stream": True}
    assert request_id("/v1/chat/completions", "my id 7", stream) == "my id 7"
    assert request_id("/v1/chat/completions", "an error", {"messages": []}) == "an error"
    assert request_id("/nowhere", "x" * 129) != request_id("/nowhere", "x" * 129)
    assert request_id("/nowhere", "x" * 128) == "x" * 128
    assert request_id("/nowhere", "caf\u00e9").startswith("req_")
    assert site.last().reply is not None, "Azure's header is accepted as a key"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("embeddings", "no embeddings"),
        ("moderations", "no moderation model"),
        ("images/generations", "no images"),
        ("audio/speech", "no audio"),
    ],
)
def test_routes_that_are_not_served_say_so(site: Site, path: str, words: str) -> None:
    answer = site.http.post(f"/v1/{path}", {"input": "a"})
    assert answer.status_code == 404
    assert words in answer.json()["error"]["message"]


def test_health_and_context_length_for_other_clients(site: Site) -> None:
    assert site.http.get("/health").json() == {"status": "ok"}
    assert [m["max_model_len"] for m in site.http.get("/v1/models").json()["data"]] == [2048, 2048]


@pytest.mark.parametrize("origins", [["https://chat.example"], ["*"]])
def test_cors_for_the_origins_of_the_setting(start: Start, origins: list[str]) -> None:
    site, origin = start(settings={"serve.cors_origins": origins}), "https://chat.example"
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "a, b",
    }
    preflight = site.http.send("OPTIONS", "/v1/chat/completions", headers=asked)
    assert preflight.status_code == 204, "a preflight has no key"
    assert preflight.headers["Access-Control-Allow-Headers"] == "a, b"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    for sent in ({"Authorization": f"Bearer {KEY}"}, {}):
        answer = site.http.get("/v1/models", {"Origin": origin, **sent})
        assert answer.headers["Access-Control-Allow-Origin"] == ("*" if "*" in origins else origin)
        assert {"X-OpenClaw-Ignored", "x-request-id"} <= set(
            answer.headers["Access-Control-Expose-Headers"].split(", ")
        )
    other = site.http.get("/v1/models", {"Origin": "https://other.example"})
    assert ("Access-Control-Allow-Origin" in other.headers) == ("*" in origins)


def test_no_origin_is_allowed_by_default(site: Site) -> None:
    asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    answer = site.http.send("OPTIONS", "/v1/chat/completions", headers=asked)
    assert answer.status_code == 405
    assert not any(name.startswith("Access-Control") for name in answer.headers)


def test_an_engine_without_an_answer_is_not_ready(site: Site) -> None:
    """Its connection is open: it hangs. The supervisor says so after 15 seconds."""
    wait_for(lambda: site.http.get("/readyz").status_code, lambda s: s == 200)
    note = "the engine has not answered for 16 s. It is restarted after 120 s"
    heartbeats.write_heartbeat(site.store, "engine", note, heartbeats.PARKED)
    found = site.http.get("/readyz")
    assert (found.status_code, found.json()["ready"]) == (503, False)
    assert found.json()["reasons"] == [f"engine: {note}"]
    heartbeats.write_heartbeat(site.store, "engine", "answers")
    assert site.http.get("/readyz").status_code == 200
