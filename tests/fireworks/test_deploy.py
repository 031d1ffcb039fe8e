"""`openclaw-rl fireworks`: a version of a home is exported and uploaded by the documented calls, once, after a yes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.fireworks.management_server import BASE, KEY, ManagementDouble
from tests.fireworks.test_adapter_export import FOLDER, write_version
from tests.redirect_server import redirecting

from openclaw_rl.cli.main import cli
from openclaw_rl.common.policy_digest import hash_folder
from openclaw_rl.errors import OpenClawError
from openclaw_rl.fireworks import service as fireworks_service
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_names
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.types import Policy, PolicyState


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose head, version 1, is an adapter of the starter."""
    config = from_flat({"home": str(tmp_path / "home")})
    prepare_home(config)
    folder = config.policies_dir / "1"
    write_version(folder)
    digest, files = hash_folder(folder)
    with Store.open(config.store_path) as store, store.write() as conn:
        policies.ensure_root(conn, base=FOLDER, identity="x", at=0.0)
        made = Policy(
            version=1,
            parent=0,
            state=PolicyState.LIVE,
            path=str(folder),
            digest=digest,
            files=files,
            base=FOLDER,
            identity="x",
            created_at=1.0,
        )
        policies.insert_version(conn, made, (), PolicyState.LIVE)
        policy_names.move_head(conn, "default", 1)
    return config.home_dir


@pytest.fixture
def service() -> Iterator[ManagementDouble]:
    with ManagementDouble() as double:
        yield double


def run(home: Path, *words: str, url: str = "http://127.0.0.1:9", **sets: str) -> Result:
    given = {"url": url, "api_key": KEY, "account": "me", "base_model": BASE} | sets
    flags = [
        word for name, value in given.items() for word in ("--set", f"fireworks.{name}={value}")
    ]
    return CliRunner().invoke(cli, ["fireworks", *words, "--home", str(home), *flags])


def error_of(result: Result) -> str:
    assert result.exit_code != 0
    return str(result.exception) if str(result.exception) not in ("1", "2") else result.output


def test_a_version_is_exported_without_a_service(home: Path, tmp_path: Path) -> None:
    done = run(home, "export", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "version 1 of" in done.output
    assert "no effect" not in done.output
    template = json.loads((tmp_path / "out" / "fireworks.json").read_text())["conversation_config"][
        "args"
    ]["template"]
    assert template == (Path(FOLDER) / "chat_template.jinja").read_text()


def test_an_adapter_is_uploaded_and_loaded_once(home: Path, service: ManagementDouble) -> None:
    done = run(home, "deploy", "--yes", "--gpus", "8", url=service.url, deployment="mine")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "gets version 1:" in done.output
    assert "A deployment with 8 GPUs is created. It costs money" in done.output
    (name,) = service.models.keys() - {BASE}
    assert name.startswith("accounts/me/models/openclaw-1-")
    details = service.models[name]["peftDetails"]
    assert (service.models[name]["kind"], details["baseModel"], details["r"]) == (
        "HF_PEFT_ADDON",
        BASE,
        8,
    )
    assert sorted(service.files) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "fireworks.json",
    ]
    created = {"baseModel": BASE, "enableAddons": True, "acceleratorCount": 8, "minReplicaCount": 0}
    assert service.deployments == {"mine": created}
    assert service.loaded == [{"model": name, "deployment": "accounts/me/deployments/mine"}]
    sent = [call for call in service.calls if call.startswith("PUT")]
    again = run(home, "deploy", "--yes", "--gpus", "8", url=service.url, deployment="mine")
    assert again.exit_code == 0, again.output
    assert "was uploaded before" in again.output
    assert "created the deployment mine before: --gpus has no effect" in again.output
    assert [call for call in service.calls if call.startswith("PUT")] == sent
    assert len(service.loaded) == 1


def test_an_upload_that_was_interrupted_continues(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fireworks_service, "_POLL_SECONDS", 0.01)
    with ManagementDouble(busy=2) as service:
        service.without_address = {"fireworks.json"}
        assert "gives no address to send fireworks.json" in error_of(
            run(home, "deploy", "--yes", url=service.url)
        )
        service.without_address = set()
        done = run(home, "deploy", "--yes", url=service.url)
        assert done.exit_code == 0, (done.output, done.exception)
        assert "set fireworks.deployment, and run this again" in done.output
        assert len([call for call in service.calls if call == "POST /v1/accounts/me/models"]) == 1
    with ManagementDouble(busy=10**6) as service:
        late = run(home, "deploy", "--yes", "--wait", "0.1", url=service.url)
        assert "has not validated accounts/me/models/openclaw-1-" in error_of(late)


@pytest.mark.parametrize(
    ("status", "body", "length", "words"),
    [
        (200, b"<html>sign in</html>", None, "something else than a JSON object"),
        (200, b"[1]", None, "something else than a JSON object"),
        (200, b'{"kind": "HF', 4000, "cannot be reached .*IncompleteRead"),
        (429, b"slow\ndown", None, "refused .*429.: slow down"),
        (500, b"half", 4000, "refused .*500.: Internal Server Error"),
        (None, b"no HTTP\r\n\r\n", None, "cannot be reached .*no HTTP"),
    ],
)
def test_an_invalid_answer_is_reported_in_one_line(
    home: Path, status: int | None, body: bytes, length: int | None, words: str
) -> None:
    with answering(status, body, length) as url:
        done = run(home, "deploy", "--yes", url=url)
    assert isinstance(done.exception, OpenClawError), done.exception
    assert re.search(words, str(done.exception)), done.exception
    assert "\n" not in str(done.exception)


@contextmanager
def answering(status: int | None, body: bytes, length: int | None) -> Iterator[str]:
    """A server that gives each request this answer. `length`: that it names, if it is not that of the body."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", str(length or len(body)))
                self.send_header("Retry-After", "3600")
                self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(240)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_follows_no_redirect(home: Path, status: int) -> None:
    with redirecting(status) as (url, received):
        done = run(home, "deploy", "--yes", url=url)
    assert (
        f"redirects GET /v1/{BASE} ({status}), and the key goes to fireworks.url alone"
        in error_of(done)
    )
    assert received == []


@pytest.mark.parametrize("key", ["fw-secret-1\n", " fw-secret-1", "fw-secret-1\u00e9"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(home: Path, key: str) -> None:
    """The line end of the file that a key was read from is the usual one."""
    done = run(home, "deploy", "--yes", api_key=key)
    assert isinstance(done.exception, OpenClawError), done.exception
    assert "fireworks.api_key: expected a key of ASCII characters without spaces" in str(
        done.exception
    )
    assert "secret" not in f"{done.exception}{done.output}"


def test_settings_from_the_environment_give_no_notice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FIREWORKS_API_KEY": KEY, "FIREWORKS_ACCOUNT_ID": "me"}.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(cli, ["fireworks", "deploy", "--home", str(home)])
    assert "not set: fireworks.base_model." in error_of(done)
    assert "no effect" not in done.output


@pytest.mark.parametrize(
    "wrong", [{"account": "accounts/me"}, {"account": "m e"}, {"deployment": "a?b"}]
)
def test_an_invalid_id_is_named(home: Path, wrong: dict[str, str]) -> None:
    assert f"fireworks.{next(iter(wrong))}: expected the ID alone" in error_of(
        run(home, "deploy", "--yes", **wrong)
    )


def test_a_version_that_was_rejected_is_not_called_the_base(home: Path, tmp_path: Path) -> None:
    with Store.open(home / "store.db") as store, store.write() as conn:
        head = policies.head(conn)
        refused = replace(
            head,
            version=2,
            parent=1,
            path=None,
            files={},
            state=PolicyState.REJECTED,
            reason="KL 9",
        )
        policies.insert_version(conn, refused, (), PolicyState.REJECTED)
    words = error_of(run(home, "export", str(tmp_path / "out"), "--policy", "2"))
    assert "version 2 is rejected (KL 9), and its weights are not kept" in words


def test_a_version_at_tinker_is_named(home: Path, tmp_path: Path) -> None:
    folder = home / "policies" / "1"
    for file in folder.iterdir():
        file.unlink()
    (folder / "tinker_version.json").write_text("{}")
    assert "version 1 is at the Tinker service" in error_of(
        run(home, "export", str(tmp_path / "out"))
    )
    assert not (tmp_path / "out").exists()


def test_an_export_to_a_file_is_refused(home: Path) -> None:
    assert "/dev/full exists, and is no folder" in error_of(run(home, "export", "/dev/full"))


def test_nothing_is_sent_without_consent(home: Path, service: ManagementDouble) -> None:
    assert "nothing is sent to Fireworks before you agree" in error_of(
        run(home, "deploy", url=service.url)
    )
    assert service.calls == []


def test_a_version_that_cannot_be_deployed_is_named(home: Path, service: ManagementDouble) -> None:
    """One line each: training there, missing settings, the base, other bases, a wrong key, no network."""
    method = error_of(run(home, "deploy", "--gpus", "8", "--method", "combine"))
    assert "nothing is trained at Fireworks" in method
    assert "recipes/openclaw-combine/run_combine_training.sh" in method
    assert "not set: fireworks.account" in error_of(run(home, "deploy", "--yes", account=""))
    assert "fireworks.deployment=NAME" in error_of(run(home, "deploy", "--yes", "--gpus", "1"))
    assert "version 0 is the base" in error_of(
        run(home, "deploy", "--yes", "--policy", "0", url=service.url)
    )
    assert "no policy version 9; there are 0 to 1" in error_of(
        run(home, "export", "x", "--policy", "9")
    )
    other = run(
        home, "deploy", "--yes", url=service.url, base_model="accounts/fireworks/models/other"
    )
    assert "Fireworks has no model accounts/fireworks/models/other" in error_of(other)
    service.models[BASE]["supportsLora"] = False
    assert "serves no adapters on" in error_of(run(home, "deploy", "--yes", url=service.url))
    assert "refused the key (401)" in error_of(
        run(home, "deploy", "--yes", url=service.url, api_key="wrong")
    )
    assert "cannot be reached" in error_of(run(home, "deploy", "--yes"))
    assert not service.files
