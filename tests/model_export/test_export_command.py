"""`openclaw-rl policies export`: the folder is complete or missing, and each refusal names what to do."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.model_export.conftest import (
    STARTER_FOLDER,
    MakeHome,
    copy_starter,
    load_model,
    logits_of,
    write_adapter,
)
from tests.small_disk import fill, mount_small_disk

from openclaw_rl.cli.main import cli
from openclaw_rl.common.atomic_files import write_folder
from openclaw_rl.render.model_check import check_model_text, check_model_weights
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies


def run(home: Path, *arguments: str | Path, version: int = 1) -> Result:
    return CliRunner().invoke(
        cli, ["policies", "export", str(version), "--home", str(home), *map(str, arguments)]
    )


def error_of(result: Result) -> str:
    assert result.exit_code != 0
    return str(result.exception) if str(result.exception) not in ("1", "2") else result.output


def write_converter(file: Path, script: str) -> Path:
    """Write a program that is called as the converter of llama.cpp is: FOLDER --outfile FILE."""
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_the_folder_is_a_model_with_a_card(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty folder may exist
    done = run(home, "--merged", out)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "version 1: 28 matrices folded into the base, 4 MiB" in done.output
    assert "bound 0.001 for float32" in done.output
    assert "100.0% of that is in the merged model" in done.output
    files = ModelFiles.from_path(str(out))
    check_model_text(files)
    check_model_weights(files, loaded_here=True)
    copied = {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {path.name for path in out.iterdir()} == copied | {"README.md", "model.safetensors"}
    card = (out / "README.md").read_text()
    assert "| base | the starter of OpenClaw-RL |" in card
    assert "| version | 1, sha256 of its weights " in card
    assert "folded into 28 matrices" in card
    assert str(home.parent) not in card


def test_the_comparison_can_be_left_out(home: Path, tmp_path: Path) -> None:
    done = run(home, "--merged", tmp_path / "out", "--no-check")
    assert "were not compared (--no-check)" in done.output
    assert (
        "| check | not compared with the version |" in (tmp_path / "out" / "README.md").read_text()
    )


def test_nothing_is_overwritten(home: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    assert "full is not empty, and nothing is overwritten" in error_of(
        run(home, "--merged", tmp_path / "full")
    )
    file = tmp_path / "file"
    file.write_text("x")
    assert "file is a file. Name a folder" in error_of(run(home, "--merged", file))
    assert "file exists, and nothing is overwritten" in error_of(run(home, "--gguf", file))
    assert "give --merged FOLDER, --gguf FILE, or both" in error_of(run(home))
    assert "--converter has no effect without --gguf" in error_of(
        run(home, "--merged", tmp_path / "out", "--converter", file)
    )


def test_a_version_without_files_is_refused(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "version 0 is the base itself" in error_of(run(home, "--merged", out, version=0))
    assert "no policy version 7" in error_of(run(home, "--merged", out, version=7))
    with Store.open(from_flat({"home": str(home)}).store_path) as store, store.write() as conn:
        policy = policies.require_version(conn, 1)
        policies.mark_removed(conn, policy, policy.files)
    assert "version 1 has no files here" in error_of(run(home, "--merged", out))
    assert not out.exists()


def test_damaged_files_are_refused(home: Path, tmp_path: Path) -> None:
    with (home / "policies" / "1" / "adapter_model.safetensors").open("ab") as file:
        file.write(b"x")
    assert "version 1 cannot be served: adapter_model.safetensors has sha256" in error_of(
        run(home, "--merged", tmp_path / "out")
    )


def test_a_base_that_has_changed_is_refused(make_home: MakeHome, tmp_path: Path) -> None:
    base = copy_starter(tmp_path / "base")
    home = make_home(base, lambda folder: write_adapter(base, folder))
    (base / "chat_template.jinja").write_text("{{ messages }}")
    assert "base is not the base of version 1 (identity" in error_of(
        run(home, "--merged", tmp_path / "out")
    )


def test_a_disk_without_room_is_named_before_anything_is_written(
    home: Path, tmp_path: Path
) -> None:
    with mount_small_disk(tmp_path / "disk", 16) as disk:
        fill(disk, leave=10 * 2**20)
        before = sorted(disk.iterdir())
        error = error_of(run(home, "--merged", disk / "out"))
        assert "MiB free, and 12 MiB are needed. Nothing was written" in error
        assert sorted(disk.iterdir()) == before


def test_a_killed_export_leaves_no_folder_and_the_next_one_completes(
    home: Path, tmp_path: Path
) -> None:
    out, unfinished = tmp_path / "out", tmp_path / ".out.tmp" / "model.safetensors"
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "policies",
        "export",
        "1",
        "--home",
        str(home),
        "--merged",
        str(out),
    ]
    end = time.monotonic() + 240
    with subprocess.Popen([*command, "--merged", str(out)]) as process:
        while not unfinished.exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.kill()
    assert not out.exists()
    done = run(home, "--merged", out)
    assert done.exit_code == 0, (done.output, done.exception)
    assert out.is_dir()
    assert not unfinished.parent.exists()


def test_an_interrupted_folder_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "out", {}, interrupt)
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------- GGUF


def test_the_converter_in_path_writes_the_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The converter gets a complete model; without --merged, that model is removed afterwards."""
    (tmp_path / "bin").mkdir()
    write_converter(tmp_path / "bin" / "convert-hf-to-gguf.py", 'ls "$1" > "$3"')
    # Only the program with `.py` runs under this Python, so this one is named as the package of llama.cpp names it.
    (tmp_path / "bin" / "convert-hf-to-gguf.py").rename(
        tmp_path / "bin" / "llama-convert-hf-to-gguf"
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    done = run(home, "--gguf", tmp_path / "new" / "model.gguf")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "GGUF, 0 MiB, not compared:" in done.output
    assert "README.md" in (tmp_path / "new" / "model.gguf").read_text().split()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.gguf"]


def test_a_checkout_of_llama_cpp_is_a_converter(home: Path, tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[3], 'w').write(' '.join(sys.argv[1:3]))"
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "convert_hf_to_gguf.py").write_text(script)
    done = run(
        home,
        "--merged",
        tmp_path / "out",
        "--gguf",
        tmp_path / "m.gguf",
        "--converter",
        tmp_path / "llama.cpp",
    )
    assert done.exit_code == 0, (done.output, done.exception)
    assert (tmp_path / "m.gguf").read_text() == f"{tmp_path / 'out'} --outfile"


def test_a_missing_converter_is_named_before_anything_is_written(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ("--merged", tmp_path / "out", "--gguf", tmp_path / "m.gguf")
    assert "--gguf needs convert_hf_to_gguf.py of llama.cpp, which is not in PATH" in error_of(
        run(home, *arguments)
    )
    error = error_of(run(home, *arguments, "--converter", tmp_path / "nothing.py"))
    assert "there is no convert_hf_to_gguf.py" in error
    assert not (tmp_path / "out").exists()


def test_a_converter_that_fails_leaves_no_file(home: Path, tmp_path: Path) -> None:
    converter = write_converter(
        tmp_path / "converter", 'echo x > "$3"; echo "No module named y" >&2; exit 3'
    )
    error = error_of(run(home, "--gguf", tmp_path / "new" / "m.gguf", "--converter", converter))
    assert "converter did not convert the model (exit code 3): No module named y" in error
    assert list((tmp_path / "new").iterdir()) == []


def test_the_written_type_is_that_of_the_option(home: Path, tmp_path: Path) -> None:
    done = run(home, "--merged", tmp_path / "out", "--dtype", "float16")
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float16"
    assert "for float16" in done.output
    assert (
        logits_of(load_model(tmp_path / "out")) - logits_of(load_model(STARTER_FOLDER))
    ).abs().max() > 0.1
