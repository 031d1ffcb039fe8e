"""The real OpenClaw: installed from npm, on a home of its own, its gateway running, talked to as a person would."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from openclaw_rl.common.sockets import free_port

TOKEN = "test-token"
READY_WITHIN = 120.0  # seconds
TURN_WITHIN = 180.0


class OpenClaw:
    """Starts `openclaw gateway run` on entry. `settings` are merged over the base settings, deeply."""

    def __init__(
        self,
        env: Path,
        home: Path,
        *,
        base_url: str,
        key: str,
        settings: Mapping[str, Any] | None = None,
    ):
        self._modules = env / "node_modules"
        self._node = env / "node" / "node_modules" / "node" / "bin" / "node"
        self.home, self.port = home, free_port()
        self.workspace = home / "workspace"
        self.config_file = home / ".openclaw" / "openclaw.json"
        self.config_file.parent.mkdir(parents=True)
        self.workspace.mkdir()
        self.config_file.write_text(
            json.dumps(merged(self._base(base_url, key), settings or {}), indent=1)
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.log = home / "openclaw.log"

    def _base(self, base_url: str, key: str) -> dict[str, Any]:
        model = {"id": "openclaw", "name": "openclaw", "reasoning": False, "input": ["text"]}
        model |= {"contextWindow": 131072, "maxTokens": 1024}
        model |= {"cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}
        provider = {
            "baseUrl": base_url,
            "apiKey": key,
            "api": "openai-completions",
            "models": [model],
        }
        endpoints = {"chatCompletions": {"enabled": True}}
        return {
            "agents": {
                "defaults": {
                    "model": {"primary": "openclaw-rl/openclaw"},
                    "workspace": str(self.workspace),
                    "heartbeat": {"every": "0m"},
                    "skipBootstrap": True,
                }
            },
            "models": {"mode": "merge", "providers": {"openclaw-rl": provider}},
            "gateway": {
                "mode": "local",
                "port": self.port,
                "bind": "loopback",
                "auth": {"mode": "token", "token": TOKEN},
                "http": {"endpoints": endpoints},
            },
        }

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the person's who runs the tests but the path to the shell's commands."""
        path = f"{self._modules / 'node' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return {
            "HOME": str(self.home),
            "PATH": path,
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "TZ": "UTC",
        }

    def command(self, *arguments: str, within: float = 120.0, check: bool = True) -> str:
        """One `openclaw` command. Returns what it printed."""
        done = subprocess.run(
            [self._node, self._modules / "openclaw" / "openclaw.mjs", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        assert done.returncode == 0 or not check, (
            f"openclaw {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
        return done.stdout + done.stderr

    def __enter__(self) -> Self:
        program = [self._node, self._modules / "openclaw" / "openclaw.mjs"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*program, "gateway", "run"],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.home,
            )
        try:
            self._wait_ready()
        except BaseException:  # also an interrupt must not leave a process behind
            self.__exit__()
            raise
        return self

    def _wait_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + READY_WITHIN
        while True:
            assert self._process.poll() is None, f"openclaw ended:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < end, (
                f"openclaw does not answer:\n{self.log.read_text()[-3000:]}"
            )
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)

    def __exit__(self, *ended: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def say(self, words: str, *, user: str = "ann", session_key: str | None = None) -> str:
        """One message of a person, by OpenClaw's own HTTP endpoint. Returns its answer."""
        body = {
            "model": "openclaw/main",
            "user": user,
            "messages": [{"role": "user", "content": words}],
        }
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        if session_key:
            headers["x-openclaw-session-key"] = session_key
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TURN_WITHIN) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            raise AssertionError(
                f"{words!r}: {error.code} {error.read().decode()[:1000]}"
            ) from error

    def call(self, method: str, params: Mapping[str, Any], *, check: bool = True) -> str:
        """One method of its gateway's protocol."""
        arguments = ("--params", json.dumps(params), "--json", "--token", TOKEN)
        return self.command(
            "gateway",
            "call",
            method,
            *arguments,
            "--url",
            f"ws://127.0.0.1:{self.port}",
            check=check,
        )


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; objects are merged."""
    out = dict(base)
    for key, value in over.items():
        known = out.get(key)
        out[key] = (
            merged(known, value)
            if isinstance(known, Mapping) and isinstance(value, Mapping)
            else value
        )
    return out
