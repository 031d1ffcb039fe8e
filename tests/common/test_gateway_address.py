"""The address of a running gateway in its home: found while it runs, stale as soon as its process is gone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from openclaw_rl.common.gateway_address import (
    FILE_NAME,
    GatewayAddress,
    publish_address,
    running_address,
)

ADDRESS = GatewayAddress(
    url="http://127.0.0.1:8123", model="m", model_path="starter", key="file", pid=1
)
PUBLISH = """
import sys, time
from pathlib import Path
from openclaw_rl.common.gateway_address import GatewayAddress, publish_address
address = GatewayAddress(url=sys.argv[2], model="m", model_path="starter", key="file", pid=1)
with publish_address(Path(sys.argv[1]), address):
    print("published", flush=True)
    time.sleep(100)
"""


def test_an_address_is_found_while_its_gateway_runs(tmp_path: Path) -> None:
    assert running_address(tmp_path) is None
    with publish_address(tmp_path, ADDRESS):
        assert running_address(tmp_path) == ADDRESS
        assert running_address(tmp_path) == ADDRESS, "a look changes nothing"
    assert running_address(tmp_path) is None


def test_the_address_of_a_killed_process_is_stale_at_once(tmp_path: Path) -> None:
    """And the next gateway of the home replaces it."""
    for port in (8001, 8002):
        command = [sys.executable, "-c", PUBLISH, str(tmp_path), f"http://127.0.0.1:{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"published\n"
            found = running_address(tmp_path)
            assert found is not None
            assert found.url == f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGKILL)
        assert running_address(tmp_path) is None
        assert json.loads((tmp_path / FILE_NAME).read_text())["url"] == found.url, (
            "the file of the dead one is there"
        )


def test_nobody_sees_a_part_of_it(tmp_path: Path) -> None:
    """The file gets its name when it is whole and locked: a reader finds the old address or the new one."""
    with publish_address(tmp_path, ADDRESS):
        inode = (tmp_path / FILE_NAME).stat().st_ino
        with publish_address(tmp_path, ADDRESS):
            assert (tmp_path / FILE_NAME).stat().st_ino != inode, "it was replaced, not rewritten"
            assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]


def test_a_file_of_another_version_is_no_address(tmp_path: Path) -> None:
    with publish_address(tmp_path, ADDRESS), (tmp_path / FILE_NAME).open("r+") as file:
        for text in ('{"port": 8000}', "[]", "", "{"):
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()
            assert running_address(tmp_path) is None
