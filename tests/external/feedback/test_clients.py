"""The clients of Langfuse, LangSmith and Slack, unmodified: what they send arrives as feedback on the right reply.

Their services are a server in this process (`tests/connect/services.py`) that stores what the clients send. The
clients read it back, too, so their own models check the shapes that the relays are given.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import langfuse
import langsmith
import pytest
from click.testing import CliRunner
from langsmith.wrappers import wrap_openai
from slack_sdk.signature import SignatureVerifier
from slack_sdk.web import WebClient
from tests.connect.services import LangfuseApi, LangSmithApi, Service, SlackApi
from tests.connect.test_slack_relay import SECRET, TS, listed, reaction, relay, slack
from tests.serve.conftest import KEY, USER, Site, Start, empty_store, renderers, start, wait_for

from openclaw_rl.cli.main import cli

__all__ = ["empty_store", "relay", "renderers", "slack", "start"]


@pytest.fixture
def site(start: Start) -> Site:
    return start()


@pytest.fixture
def langfuse_api() -> Iterator[tuple[LangfuseApi, Service]]:
    api = LangfuseApi()
    service = Service(api.route)
    yield api, service
    service.close()


@pytest.fixture
def langsmith_api() -> Iterator[tuple[LangSmithApi, Service]]:
    api = LangSmithApi()
    service = Service(api.route)
    yield api, service
    service.close()


def connect(site: Site, home: Path, environment: dict[str, str], *arguments: str) -> str:
    """Run `openclaw-rl connect ... --once`, and return what it printed."""
    port = site.url.rsplit(":", 1)[1]
    sets = [
        f"--set={k}={v}" for k, v in (("home", home), ("serve.port", port), ("serve.api_key", KEY))
    ]
    done = CliRunner(env=environment).invoke(cli, ["connect", *arguments, "--once", *sets])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def ask(site: Site, said: str) -> str:
    site.script.say(said)
    return str(site.client().chat.completions.create(model="openclaw", messages=[USER]).id)


def test_a_score_of_langfuse(
    site: Site, langfuse_api: tuple[LangfuseApi, Service], tmp_path: Path
) -> None:
    api, service = langfuse_api
    target = ask(site, "Paris is the capital of France.")
    ask(site, "Something else.")
    client = langfuse.Langfuse(public_key="pk", secret_key="sk", base_url=service.url)
    trace = client.create_trace_id(seed="one")
    client.create_score(
        name="user-feedback",
        value=1,
        trace_id=trace,
        score_id="s1",
        comment="Right.",
        data_type="BOOLEAN",
    )
    client.create_score(name="latency", value=0.3, trace_id=trace, score_id="s2")
    client.flush()
    wait_for(lambda: set(api.scores), lambda ids: ids == {"s1", "s2"})
    api.observations = [
        {
            "id": "o1",
            "traceId": trace,
            "projectId": "p",
            "type": "GENERATION",
            "startTime": datetime.now(UTC).isoformat(),
            "output": json.dumps(
                {"role": "assistant", "content": "Paris is the capital of France."}
            ),
        }
    ]
    (read,) = client.api.observations.get_many(trace_id=trace, fields="core,basic,io").data
    assert read.output == api.observations[0]["output"]
    assert {score.id for score in client.api.scores.get_many(fields="subject,details").data} == {
        "s1",
        "s2",
    }

    keys = {
        "LANGFUSE_BASE_URL": service.url,
        "LANGFUSE_PUBLIC_KEY": "pk",
        "LANGFUSE_SECRET_KEY": "sk",
    }
    assert "1 scores given" in connect(site, tmp_path, keys, "langfuse", "--name", "user-feedback")
    (item,) = site.http.get("/v1/feedback").json()["data"]
    assert (item["target"], item["score"], item["comment"]) == (target, 1, "Right.")
    client.api.scores.delete("s1")
    assert "1 taken back" in connect(site, tmp_path, keys, "langfuse", "--name", "user-feedback")
    assert site.http.get("/v1/feedback").json()["data"] == []
    client.shutdown()


@pytest.mark.parametrize("stream", [False, True])
def test_feedback_of_langsmith(
    site: Site,
    langsmith_api: tuple[LangSmithApi, Service],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    api, service = langsmith_api
    for name, value in (
        ("LANGSMITH_TRACING", "true"),
        ("LANGSMITH_ENDPOINT", service.url),
        ("LANGSMITH_API_KEY", "key"),
    ):
        monkeypatch.setenv(name, value)
    client = langsmith.Client(api_url=service.url, api_key="key", auto_batch_tracing=False)
    site.script.say("Paris is the capital of France.")
    wrapped = wrap_openai(site.client(), tracing_extra={"client": client})
    answer: Any = wrapped.chat.completions.create(model="openclaw", messages=[USER], stream=stream)
    target = list(answer)[-1].id if stream else answer.id
    # An equal text, which the run's output tells apart if it has the reply's id.
    run = wait_for(
        lambda: list(api.runs.values()), lambda runs: bool(runs and runs[0].get("outputs"))
    )[0]
    assert str(client.read_run(run["id"]).id) == run["id"]
    feedback = client.create_feedback(run_id=run["id"], key="thumb", score=0, comment="Wrong.")
    client.create_feedback(run_id=run["id"], key="other", score=1)
    assert [
        one.key for one in client.list_feedback(run_ids=[run["id"]], feedback_key=["thumb"])
    ] == ["thumb"]

    keys = {"LANGSMITH_ENDPOINT": service.url, "LANGSMITH_API_KEY": "key"}
    assert "1 scores given" in connect(site, tmp_path, keys, "langsmith", "--name", "thumb")
    (item,) = site.http.get("/v1/feedback").json()["data"]
    assert (item["target"], item["score"], item["comment"]) == (target, -1, "Wrong.")
    client.delete_feedback(feedback.id)
    assert "1 taken back" in connect(site, tmp_path, keys, "langsmith", "--name", "thumb")
    assert site.http.get("/v1/feedback").json()["data"] == []


def test_slack_signs_and_reads_as_the_relay_does(site: Site, slack: SlackApi, relay: Any) -> None:
    body = json.dumps(reaction("reaction_added", "+1"))
    timestamp = str(int(time.time()))
    signature = SignatureVerifier(SECRET).generate_signature(timestamp=timestamp, body=body)
    assert relay.is_signed(SECRET, timestamp, signature, body.encode())
    slack.messages = [{"ts": TS, "text": "Hello.", "bot_id": "B1"}]
    client = WebClient(token="xoxb-1", base_url=f"{relay.SLACK_API}/")
    assert listed(site) == []
    read = client.conversations_history(channel="C1", latest=TS, inclusive=True, limit=1)
    assert read["messages"] == slack.messages
