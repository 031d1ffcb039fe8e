"""The real app on a real socket, in a thread of its own, with a real store and the scripted engine."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import openai
import pytest
import uvloop
from aiohttp import web
from tests.render.model_folders import make, make_visual
from tests.render.trl_templates import KINDS, make_kind

from openclaw_rl.common.policy_digest import hash_folder
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.app import make_app
from openclaw_rl.serve.auth import ApiKeys, scope_of
from openclaw_rl.serve.http_connection import GatewayRunner
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import exchanges, leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import candidates, policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, start_policies
from openclaw_rl.testing import ReplyScript, ScriptedEngine, write_adapter
from openclaw_rl.types import Exchange, ExchangeStatus, Policy, PolicyState

KEY = "sk-test"
OTHER_KEY = "sk-other"


@pytest.fixture(scope="session")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Renderer]:
    """Renderers by the kind of their template; the tokenizers are trained once."""

    def get(kind: str = "chatml", *, visual: bool = False, **options: Any) -> Renderer:
        write = make_kind if kind in KINDS else make
        folder = write(tmp_path_factory.mktemp("model") / kind, kind)
        return Renderer(
            ModelFiles.from_path(str(make_visual(folder) if visual else folder)), **options
        )

    return cache(get)


@dataclass
class Script:
    """What the engine says next: set `text`, or `ids`; by default the stop token follows."""

    renderer: Renderer
    ids: list[int] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)

    def say(self, text: str, *, stop: bool = True) -> list[int]:
        self.ids = (
            self.renderer.tokenizer.encode(text).tolist() + [self.renderer.stop_token_ids[0]] * stop
        )
        return self.ids

    def __call__(self, prompt: Any, version: int) -> list[int]:
        self.seen.append(list(prompt))
        return self.ids


@dataclass
class Answer:
    """What came back over HTTP."""

    status_code: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Http:
    """Plain HTTP, with nothing between the test and the bytes."""

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("http://")

    def send(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """With the test's key, unless `headers` are given."""
        connection = http.client.HTTPConnection(self._address, timeout=240)
        try:
            given = {"Authorization": f"Bearer {KEY}"} if headers is None else dict(headers)
            connection.request(method, path, content or None, given)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """`body`: bytes as they are, anything else as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, raw, headers)


class Site:
    """A running gateway."""

    def __init__(
        self,
        config: Config,
        renderer: Renderer,
        store: Store,
        engine: ScriptedEngine,
        script: Script,
    ) -> None:
        self.config, self.renderer, self.store, self.engine, self.script = (
            config,
            renderer,
            store,
            engine,
            script,
        )
        self.loop = uvloop.new_event_loop()
        self._clients: dict[str, openai.OpenAI] = {}
        self._stop = asyncio.Event()
        self._up: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._up.result(240)}"
        self.http = Http(self.url)

    def _run(self) -> None:
        self.loop.run_until_complete(self._main())
        self.loop.close()

    async def _main(self) -> None:
        app = make_app(
            self.config,
            store=self.store,
            engine=self.engine,
            renderer=self.renderer,
            keys=ApiKeys([KEY, OTHER_KEY]),
            identity="test-identity",
        )
        self.app = app
        runner = GatewayRunner(app, self.config.serve, grace=0.2)
        self.runner = runner
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._up.set_result(runner.addresses[0][1])
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(240)

    # For tests.

    def client(self, key: str = KEY) -> openai.OpenAI:
        if key not in self._clients:
            http = openai.DefaultHttpxClient(
                verify=False
            )  # loading the certificates would take 20 ms of each test
            self._clients[key] = openai.OpenAI(
                base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=240, http_client=http
            )
        return self._clients[key]

    def async_client(self, key: str = KEY) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(verify=False)
        return openai.AsyncOpenAI(
            base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=240, http_client=http
        )

    def get(self, id: str) -> Exchange:
        """From the store, through a connection of its own."""
        with self.store.read() as conn:
            found = exchanges.get(conn, id)
        assert found is not None
        return found

    def last(self) -> Exchange:
        with self.store.read() as conn:
            row = conn.exec_driver_sql("SELECT id FROM exchanges ORDER BY seq DESC LIMIT 1").one()
        return self.get(row[0])

    def count(self) -> int:
        with self.store.read() as conn:
            return int(conn.exec_driver_sql("SELECT count(*) FROM exchanges").scalar_one())

    def ended(self, id: str) -> Exchange:
        """The exchange once it has ended."""
        return wait_for(lambda: self.get(id), lambda e: e.reply is not None)

    def publish(
        self,
        folder: Path,
        *,
        state: PolicyState = PolicyState.LIVE,
        metrics: Mapping[str, float] = MappingProxyType({}),
        name: str = DEFAULT_NAME,
    ) -> Policy:
        """One more version after the policy's head, with a real (if senseless) adapter folder."""
        now = time.time()
        with self.store.write() as conn:
            head, version = policies.head(conn, name), policies.next_version(conn)
            lease = leases.acquire(conn, "train", "test", 30.0, now)
            assert lease is not None
            write_adapter(folder / str(version), weight=float(version))
            digest, files = hash_folder(folder / str(version))
            policy = Policy(
                version=version,
                name=name,
                parent=head.version,
                state=PolicyState.CANDIDATE,
                path=str(folder / str(version)),
                digest=digest,
                files=files,
                base=head.base,
                identity=head.identity,
                metrics=dict(metrics),
                reason="too bad" if state is PolicyState.REJECTED else None,
                created_at=now,
            )
            record = {
                PolicyState.REJECTED: policies.reject,
                PolicyState.CANDIDATE: candidates.add_candidate,
            }
            record.get(state, policies.publish)(conn, lease, policy, [], now)
            leases.release(conn, lease)
        return policy


def wait_for(get: Callable[[], Any], good: Callable[[Any], bool], seconds: float = 240.0) -> Any:
    until = time.monotonic() + seconds
    while not good(value := get()):
        assert time.monotonic() < until, f"not within {seconds} s: {value!r}"
        time.sleep(0.01)
    return value


Start = Callable[..., Site]


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store file with the root policy, to be copied: migrations would take half of a gateway's start."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    store = Store.open(path)
    with store.write() as conn:
        policies.ensure_root(conn, base="test", identity="test-identity", at=time.time())
    store.close()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def start(tmp_path: Path, renderers: Callable[..., Renderer], empty_store: Path) -> Iterator[Start]:
    """Start a gateway: `start(kind="chatml", delay=0.0, settings={...}, ...)`."""
    sites: list[Site] = []

    def start(
        kind: str = "chatml",
        *,
        settings: Mapping[str, Any] | None = None,
        store: Store | None = None,
        reply: ReplyScript | None = None,
        visual: bool = False,
        engine_kind: type[ScriptedEngine] = ScriptedEngine,
        **engine: Any,
    ) -> Site:
        quiet = {"serve.examine_lessons": False}  # the engine is asked by the test alone
        config = from_flat(
            {"home": str(tmp_path), "engine.max_context": 2048, **quiet, **(settings or {})}
        )
        if store is None:
            shutil.copy(empty_store, config.store_path)
            store = Store.open(config.store_path)
        with store.write() as conn:
            start_policies(conn, config.policy.per)
        options = {} if config.serve.special_tokens == "text" else {"literal_text": False}
        renderer = renderers(kind, **({"visual": True} if visual else {}), **options)
        script = Script(renderer)
        script.say("Hello there.")
        engine = {"context_length": 2048, "versions": config.engine.max_loaded_versions, **engine}
        sites.append(Site(config, renderer, store, engine_kind(reply or script, **engine), script))
        return sites[-1]

    yield start
    for site in sites:
        site.close()
    for store in {id(s.store): s.store for s in sites}.values():
        store.close()


@pytest.fixture
def site(start: Start) -> Site:
    return start()


def statuses(site: Site) -> list[ExchangeStatus]:
    with site.store.read() as conn:
        rows = conn.exec_driver_sql("SELECT status FROM exchanges ORDER BY seq").all()
    return [ExchangeStatus(r[0]) for r in rows]


SCOPE = scope_of(KEY)
USER = {"role": "user", "content": "hi"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
