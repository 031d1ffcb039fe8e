"""Help pages, and what an unknown option is answered with."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.settings.test_cli_options import EVERY, READERS

from openclaw_rl.cli.main import cli, main
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.aliases import alias_table, by_form
from openclaw_rl.settings.suggestions import settings_meant, suggest_flag

NAMES = [name for name, command in EVERY if name != "starter" and not command.hidden]

PROGRAM_OPTIONS = {
    "--python",
    "--tasks",
    "--held-out",
    "--limit-seconds",
    "--parallel",
    "--env",
    "--box",
    "--show",
}
MOVE_OPTIONS = {"--learn-again", "--reason", "--yes"}


def help_of(name: str) -> str:
    done = CliRunner().invoke(
        cli, [*name.split(), "--help"], env={"COLUMNS": "80"}, terminal_width=80
    )
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_80_columns_and_breaks_no_word(name: str) -> None:
    lines = help_of(name).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert not [line for line in lines if re.search(r"\w-$", line)], (
        "a word was broken at its hyphen"
    )


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("train", ("--lr", "--lora-rank", "--gpus", "--save-dir", "--use-lora")),
        (
            "up",
            (
                "--lr",
                "--lora-rank",
                "--gpus",
                "--save-dir",
                "--use-lora",
                "--judge-model",
                "--tokenizer-path",
            ),
        ),
        ("serve", ("--gpu-ids", "--rl-buffer-dir")),
        ("judge", ("--majority-vote-n", "--custom-rm-path")),
        ("rollout", ("--rollout-function-path", "--max-turns")),
    ],
)
def test_help_names_the_flags_of_the_command(name: str, flags: tuple[str, ...]) -> None:
    listed = set(re.findall(r"--[a-z0-9-]+", help_of(name)))
    assert listed >= set(flags)
    assert name != "serve" or "--lr" not in listed


def test_help_shows_the_settings_of_a_flag_and_their_default() -> None:
    assert re.search(r"--lr VALUE +train\.optimizer\.learning_rate \[0\.0015\]", help_of("train"))
    assert re.search(r"--use-lora, --lora +train\.finetune \[lora\]", help_of("train"))


@pytest.mark.parametrize("name", sorted(READERS))
def test_commands_that_read_a_home_have_only_the_options_that_they_use(name: str) -> None:
    shared = {"--config", "--set", "--home", "-h", "--help"}
    own = {
        "status": {"--watch", "--json"},
        "inspect sessions": {"--limit", "--json"},
        "undo": {
            "--turn",
            "--session",
            "--since",
            "--lesson",
            "--policy",
            "--reason",
            "--yes",
            "--no-wait",
            "--now",
        },
        "learned": {
            "--policy",
            "--since",
            "--session",
            "--limit",
            "--json",
            "--html",
            "--practice",
        },
        "policies export": {"--merged", "--gguf", "--dtype", "--converter", "--no-check"},
        "policies list": {"--policy", "--limit", "--json"},
        "lessons list": {"--all", "--json"},
        "lessons forget": {"--yes"},
        "open": {"--no-browser", "--sign-out"},
        **{f"policies {name}": {"--json"} for name in ("show", "diff")},
        **dict.fromkeys(("rollback", "policies rollback"), MOVE_OPTIONS | {"--policy"}),
        "policies promote": MOVE_OPTIONS,
        "data export": {"--session", "--since", "--format", "--redact"},
        "data stream": {"--name"},
        "fireworks export": {"--policy"},
        "fireworks deploy": {"--policy", "--gpus", "--method", "--wait", "--yes"},
        "env build": {"--parallel", "--env"},
        "env check": PROGRAM_OPTIONS | {"--oracle", "--nop"},
        "env run": PROGRAM_OPTIONS
        | {
            "--group",
            "--split",
            "--epochs",
            "--max-steps",
            "--seed",
            "--run",
            "--agent",
            "--unchecked",
            "--json",
        },
    }
    expected = own.get(name, {"--json"} if name.startswith("inspect") else set())
    command: click.Command = dict(EVERY)[name]
    options = {o for p in command.params if isinstance(p, click.Option) for o in p.opts} | {
        "-h",
        "--help",
    }
    assert options == shared | expected


# -------------------------------------------------------------------------------- unknown options


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--learning-rate", "--lr (train.optimizer.learning_rate)"),
        ("--learning_rate", "--lr (train.optimizer.learning_rate)"),
        ("--learnin-rate", "--lr (train.optimizer.learning_rate)"),
        ("--rank", "--lora-rank (train.lora.rank)"),
        ("--lora-r", "--lora-rank (train.lora.rank)"),
        ("--lora_rank", "--lora-rank (train.lora.rank)"),
        ("--per-device-train-batch-size", "--batch-size (train.batch.min_turns)"),
        ("--epochs", "--num-epochs (train.batch.epochs)"),
        ("--max-grad-norm", "--clip-grad (train.optimizer.clip_grad)"),
        ("--model-name-or-path", "--model-path (model.path)"),
        ("--devices", "--gpus (train.gpus)"),
        ("--output_dir", "--rl-buffer-dir (data.export_dir)"),
        ("--save-path", "--save-dir (train.checkpoint.save_dir)"),
        ("--max-steps", "--set train.max_steps=VALUE"),  # not --max-turns
        ("--max-step", "--set train.max_steps=VALUE"),
        ("--seed", "--set train.seed=VALUE"),  # not --save-dir
        ("--temperature", "--set serve.sampling_override.temperature=VALUE"),
    ],
)
def test_an_unknown_flag_names_the_one_of_the_same_meaning(flag: str, meant: str) -> None:
    error = CliRunner().invoke(cli, ["train", flag, "1"]).exception
    assert f"unknown setting '{flag}'. Did you mean {meant}?" in str(error)


def test_an_unknown_flag_without_a_near_name_gets_no_suggestion() -> None:
    error = CliRunner().invoke(cli, ["train", "--xyzzy", "1"]).exception
    assert "unknown setting '--xyzzy'. `--set KEY=VALUE` sets any setting." in str(error)


def test_a_name_shared_by_several_settings_lists_them() -> None:
    assert suggest_flag("--timeout", settings.known_keys()) == (
        " Did you mean --set judge.timeout=VALUE or --set teacher.timeout=VALUE or --set train.launch.timeout=VALUE?"
    )


@pytest.mark.parametrize(
    ("line", "meant"),
    [("training: {lr: 1}", "train.optimizer.learning_rate"), ("lora_r: 8", "train.lora.rank")],
)
def test_a_misspelled_key_of_a_file_gets_the_setting_of_its_meaning(
    line: str, meant: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(line)
    error = CliRunner().invoke(cli, ["config", "check", str(file)]).exception
    assert f"Did you mean '{meant}'?" in str(error)


def test_the_table_of_other_names_has_no_dead_row() -> None:
    rows = alias_table("other_names")
    words = [word for others in rows.values() for word in others.split()]
    assert set(rows) <= set(settings.known_keys())
    assert len(words) == len(set(words))
    assert not {f"--{word.replace('_', '-')}" for word in words} & by_form("flag").keys(), (
        "a known flag needs no row"
    )
    for key, others in rows.items():
        assert all(
            settings_meant(f"--{word}", settings.known_keys()) == [key] for word in others.split()
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "--lr", "1"), "'--lr'.\nIt means train.optimizer.learning_rate"),
        (
            ("status", "--learning-rate", "1"),
            "It means train.optimizer.learning_rate, a setting of the running system",
        ),
        (("key", "--port", "1"), "this command finds that system by --home"),
        (
            ("chat", "--learning-rate", "1"),
            "This command takes it as --set train.optimizer.learning_rate=VALUE.",
        ),
        (("config", "check", "--xyzzy"), "No such option '--xyzzy'"),
        (("chat", "--hme", "x"), "--home"),
        (("chat", "--hepl"), "--help"),
    ],
)
def test_an_option_that_a_command_does_not_have(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
