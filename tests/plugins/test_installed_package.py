"""An engine and a trainer of an installed package are where the built-in ones are, without a line changed here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.echo_package import install_package, run_python


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_package(tmp_path_factory.mktemp("package"))


def run_command(site: Path, *words: str) -> tuple[int, str]:
    """Return exit code and output, in one line."""
    done = run_python(site, "-m", "openclaw_rl", *words)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_help_names_them(site: Path) -> None:
    code, output = run_command(site, "up", "--help")
    assert code == 0
    assert "tinker, fireworks (experimental) or echo." in output
    assert "external (experimental), tinker or counting" in output


def test_the_settings_reference_describes_them(site: Path, tmp_path: Path) -> None:
    page = tmp_path / "settings.md"
    done = run_python(site, "-m", "openclaw_rl.settings.reference", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "or `fireworks` or `echo` |" in text
    assert "; echo (of the package openclaw-rl-echo): always gives the reply" in text
    assert "; counting (of the package openclaw-rl-echo): counts its steps" in text
    assert "| `echo.reply` | text | `Noted.` | text of every reply |" in text


def test_preflight_calls_their_checks(site: Path, tmp_path: Path) -> None:
    words = ("serve", "--home", str(tmp_path), "--backend", "echo", "--set", "echo.reply= ")
    code, output = run_command(site, *words)
    assert code == 1
    assert output == "openclaw-rl: echo.reply is blank: set the text of the replies"


def test_the_doctor_diagnoses_them(site: Path, tmp_path: Path) -> None:
    words = ("doctor", "--troubles", "--home", str(tmp_path), "--backend", "echo")
    code, output = run_command(site, *words, "--set", "echo.reply= ")
    assert code == 1
    assert "the echo engine does not start" in output
    assert "examples/engine_and_trainer" in output
    assert run_command(site, *words, "--set", "train.trainer=counting")[0] == 0


def test_a_setting_of_its_section_needs_the_engine(site: Path) -> None:
    _, output = run_command(site, "config", "show", "--set", "echo.reply=Hello")
    assert "echo.reply has no effect: only with engine.backend echo" in output


def test_a_broken_package_is_named_where_it_is_used(site: Path, tmp_path: Path) -> None:
    broken = install_package(tmp_path)
    (broken / "echo_integration" / "specs.py").write_text("raise RuntimeError('no licence')")
    code, output = run_command(broken, "config", "show")
    assert code == 0, output
    code, output = run_command(broken, "config", "show", "--backend", "echo")
    assert code == 1
    assert "engine echo of the package openclaw-rl-echo cannot be loaded from" in output
    assert "no licence" in output


def test_without_the_package_its_names_are_unknown(tmp_path: Path) -> None:
    code, output = run_command(tmp_path, "config", "show", "--backend", "echo")
    assert code == 1
    assert "engine.backend: Input should be 'embedded'," in output
