"""The store of built roots, the view of their layers, and what a build reaches of the network."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.environments.sources.harbor.task_folder import load_folder
from openclaw_rl.environments.sources.harbor.task_root import TaskRoots
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.egress_proxy import can_reach, open_egress_proxy
from openclaw_rl.sandbox.package_settings import (
    local_folders,
    package_variables,
    read_package_sources,
    source_hosts,
)
from openclaw_rl.sandbox.root_builds import finish_layer
from openclaw_rl.sandbox.root_layers import LayeredRoot, RootLayer
from openclaw_rl.sandbox.root_store import RootStore
from openclaw_rl.settings.schema_sandbox import SandboxConfig

DIGEST = "a" * 64


async def write_file(layer: RootLayer) -> Mapping[str, Any]:
    (layer.root / "file").write_text("x")
    return {"fact": 1}


def test_a_layer_is_built_once_also_by_two_at_once(tmp_path: Path) -> None:
    written = 0

    async def write(layer: RootLayer) -> Mapping[str, Any]:
        nonlocal written
        written += 1
        await asyncio.sleep(0)
        return await write_file(layer)

    async def build() -> list[RootLayer]:
        stores = [RootStore(tmp_path), RootStore(tmp_path)]
        return await asyncio.gather(*(store.build_layer(DIGEST, write) for store in stores))

    one, other = asyncio.run(build())
    assert (one, written) == (other, 1)
    assert RootStore(tmp_path).find_layer(DIGEST) == one
    assert RootStore(tmp_path).read_facts(one) == {"fact": 1}
    assert not any(path.exists() for path in one.work_folders)


def test_a_build_that_failed_or_was_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    store = RootStore(tmp_path)
    for digest in (DIGEST, "b" * 64):
        killed = tmp_path / f".building-{digest[:32]}" / "root"
        killed.mkdir(parents=True)
        (killed / "half").write_text("x")

    async def fail(layer: RootLayer) -> Mapping[str, Any]:
        await write_file(layer)
        raise SandboxError("the box failed")

    with pytest.raises(SandboxError, match="the box failed"):
        asyncio.run(store.build_layer(DIGEST, fail))
    assert store.find_layer(DIGEST) is None
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    layer = asyncio.run(store.build_layer(DIGEST, write_file))
    assert not (layer.root / "half").exists()


def test_a_folder_that_is_no_layer_is_replaced(tmp_path: Path) -> None:
    half = tmp_path / DIGEST[:32] / "root"
    half.mkdir(parents=True)
    (half / "half").write_text("x")
    layer = asyncio.run(RootStore(tmp_path).build_layer(DIGEST, write_file))
    assert [path.name for path in layer.root.iterdir()] == ["file"]


def test_no_file_of_a_layer_lets_a_user_run_it_as_its_owner(tmp_path: Path) -> None:
    async def write(layer: RootLayer) -> Mapping[str, Any]:
        program = layer.usr / "program"
        program.write_text("x")
        program.chmod(0o6755)
        return {}

    layer = asyncio.run(RootStore(tmp_path).build_layer(DIGEST, write))
    assert stat.S_IMODE((layer.usr / "program").stat().st_mode) == 0o755


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SandboxError, match=r"set sandbox\.roots to another"):
        asyncio.run(RootStore(tmp_path / "file" / "roots").build_layer(DIGEST, write_file))


def make_layer(folder: Path, *names: str) -> RootLayer:
    layer = RootLayer(folder)
    for name in names:
        path = layer.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(folder.name)
    return layer


def test_the_topmost_layer_counts(tmp_path: Path) -> None:
    below = make_layer(tmp_path / "below", "app/a", "app/b", "data/c", "link/d")
    above = make_layer(tmp_path / "above", "app/a")
    (above.root / "link").symlink_to("/etc")
    root = LayeredRoot(layers=(above, below))
    top = root.list_top()
    assert {name: path.parent.parent.name for name, path in top.items()} == {
        "app": "above", "data": "below", "link": "above",
    }  # fmt: skip
    assert root.find_path("/app/b") == below.root / "app" / "b"
    assert root.find_path("/link") == above.root / "link"
    assert root.find_path("/missing") is None


def test_a_path_through_a_link_is_not_followed(tmp_path: Path) -> None:
    layer = make_layer(tmp_path / "one", "file")
    (layer.root / "home").symlink_to("/etc")
    assert LayeredRoot(layers=(layer,)).find_path("/home/passwd") is None


def test_a_link_of_a_build_never_leads_to_files_of_this_machine(tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "app"
    outside.mkdir(parents=True)
    (outside / "file").write_text("x")
    outside.chmod(0o700)
    below = make_layer(tmp_path / "below", "opt/app/file")
    above = make_layer(tmp_path / "above", "other/file")
    (above.root / "opt").symlink_to(tmp_path / "outside")
    assert LayeredRoot(layers=(above, below)).find_path("/opt/app") is None
    assert above.find_folder("/opt/app") is None
    assert below.find_folder("/opt/app") == below.root / "opt" / "app"
    before = outside.stat()
    finish_layer(above, ("/opt/app",), ("/opt/app",))
    assert (outside / "file").read_text() == "x"
    assert (outside.stat().st_uid, outside.stat().st_mode) == (before.st_uid, before.st_mode)
    (above.root / "tests").symlink_to(outside)
    with pytest.raises(SandboxError, match="made /tests a link"):
        finish_layer(above, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the mark of a removed file")
def test_what_a_build_removed_is_gone(tmp_path: Path) -> None:
    below = make_layer(tmp_path / "below", "app/a")
    above = make_layer(tmp_path / "above", "x")
    os.mknod(above.root / "app", stat.S_IFCHR | 0o600, 0)
    root = LayeredRoot(layers=(above, below))
    assert list(root.list_top()) == ["x"]
    assert root.find_path("/app") is None


def test_a_folder_that_cannot_be_mounted_is_refused(tmp_path: Path) -> None:
    root = LayeredRoot(layers=(RootLayer(tmp_path / "a:b"),))
    with pytest.raises(SandboxError, match="without ':'"):
        root.mount_command(tmp_path / "at", tmp_path / "memory", 1)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.3.2.1", "0.0.0.0", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1%eth0",
        "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "::ffff:168.63.129.16",
        "64:ff9b::169.254.169.254", "64:ff9b::127.0.0.1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    ],
)  # fmt: skip
def test_no_build_reaches_this_machine_or_a_metadata_service(address: str) -> None:
    assert not can_reach(address)
    assert not can_reach(address, is_source=True)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.5", "172.16.3.4", "192.168.1.1", "100.64.0.1", "203.0.113.80", "fd12::1", "fec0::1", "::10.0.0.5",
        "64:ff9b::10.0.0.5", "64:ff9b:1::10.0.0.5", "::ffff:192.168.1.1", "2002:c0a8:101::1",
    ],
)  # fmt: skip
def test_only_sources_of_packages_may_be_of_a_private_network(address: str) -> None:
    assert not can_reach(address)
    assert can_reach(address, is_source=True)


@pytest.mark.parametrize("address", ["151.101.0.223", "2a04:4e42::223", "64:ff9b::8.8.8.8"])
def test_public_addresses_are_reached(address: str) -> None:
    assert can_reach(address)


def test_only_a_missing_interface_means_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise OSError(errno.EACCES, "not allowed")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert not can_reach("151.101.0.223")


def test_hosts_of_packages_are_those_of_the_settings() -> None:
    places = source_hosts(
        {"index-url": ["http://mirror.example:8080/simple"], "find-links": ["/w"]}
    )
    assert ("mirror.example", 8080) in places
    assert ("pypi.org", 443) in places
    assert all(host != "/w" for host, _ in places)


async def ask_proxy(request: str) -> bytes:
    async with open_egress_proxy() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request.encode())
        answer = await reader.read()
        writer.close()
        return answer


@pytest.mark.parametrize(
    ("request_text", "status", "words"),
    [
        ("CONNECT localhost:{port} HTTP/1.1\r\n\r\n", b"403", b"expected port 80 or 443"),
        ("CONNECT localhost:443 HTTP/1.1\r\n\r\n", b"403", b"is of this machine"),
        ("CONNECT 10.0.0.5:80 HTTP/1.1\r\n\r\n", b"403", b"or of a private network"),
        ("CONNECT server.invalid:22 HTTP/1.1\r\n\r\n", b"403", b"expected port 80 or 443"),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n", b"403", b"expected port 80 or 443"),
        ("GET http://127.0.0.1/ HTTP/1.1\r\n\r\n", b"403", b"is of this machine"),
        ("GET /local HTTP/1.1\r\n\r\n", b"400", b"expected a request for a proxy"),
        ("GET http://name:word@192.0.2.1/ HTTP/1.1\r\n\r\n", b"400", b"expected a request"),
        ("nonsense\r\n\r\n", b"400", b"expected a request for a proxy"),
        ("CONNECT server.invalid:443 HTTP/1.1\r\n\r\n", b"502", b"cannot be reached"),
    ],
)
def test_a_build_reaches_nothing_of_this_machine(
    request_text: str, status: bytes, words: bytes
) -> None:
    async def run() -> bytes:
        reached = []
        server = await asyncio.start_server(
            lambda reader, writer: reached.append(writer.close()), "127.0.0.1", 0
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            answer = await ask_proxy(request_text.replace("{port}", str(port)))
        assert reached == []
        return answer

    answer = asyncio.run(run())
    assert answer.split(b" ")[1] == status
    assert words in answer


def test_packages_come_from_where_this_machine_gets_them(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    sources = read_package_sources(
        {
            "PIP_INDEX_URL": "https://mirror.example/simple",
            "PIP_EXTRA_INDEX_URL": "https://me:secret@private.example/simple file:///srv/simple",
            "PIP_FIND_LINKS": f"{wheels} /",
        }
    )
    assert sources["index-url"] == ["https://mirror.example/simple"]
    assert "extra-index-url" not in sources
    variables = package_variables(sources)
    assert variables["PIP_INDEX_URL"] == variables["UV_DEFAULT_INDEX"]
    assert "secret" not in str(variables)
    assert sources["find-links"] == [str(wheels)]
    assert local_folders(sources) == {"/run/packages/0": wheels}
    assert variables["PIP_FIND_LINKS"] == variables["UV_FIND_LINKS"] == "/run/packages/0"


def test_an_index_in_a_folder_is_left_out(tmp_path: Path) -> None:
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
    assert read_package_sources(dict.fromkeys(names, str(tmp_path))).keys() <= {"find-links"}


def test_the_setting_is_the_folder_of_the_roots(tmp_path: Path) -> None:
    (tmp_path / "instruction.md").write_text("Do it.")
    (tmp_path / "task.toml").write_text("")
    roots = TaskRoots(sandbox=SandboxConfig(roots=str(tmp_path / "roots")))
    assert roots.find_root(load_folder(tmp_path)) is None
    store = RootStore(tmp_path / "roots")
    for digest in roots.list_digests(load_folder(tmp_path)):

        async def write(layer: RootLayer) -> Mapping[str, Any]:
            return {"variables": {}, "cwd": "/app", "carried": [], "writable": [], "stand_in": "x"}

        asyncio.run(store.build_layer(digest, write))
    root = roots.find_root(load_folder(tmp_path))
    assert root is not None
    assert (root.cwd, root.stand_in) == ("/app", "x")
