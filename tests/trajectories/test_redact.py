"""`data export --redact`: no secret survives, nothing is taken out twice, and no text makes it slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.growth import check_linear_growth
from tests.system.test_words import run
from tests.trajectories.world import IDENTITY, Home, main, put

from openclaw_rl.trajectories.operations import export_sessions
from openclaw_rl.trajectories.pii import scrub_text
from openclaw_rl.trajectories.redact import TrajectoryRedactor

WORD = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def random_(least: int, most: int, alphabet: str = WORD) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most)


names = st.from_regex(r"\A[a-z]{2,8}([._+-][a-z]{1,6})?\Z")
hosts = st.from_regex(r"\A[a-z]{2,8}(-[a-z]{2,4})?\.(com|org|co\.uk|museum)\Z")
digits = random_(4, 4, "0123456789")
SECRETS: dict[str, tuple[str, st.SearchStrategy[str]]] = {
    "mail": ("email", st.builds("{}@{}".format, names, hosts)),
    "international": ("phone", st.builds("+49 30 555{}".format, digits)),
    "american": ("phone", st.builds("(415) 555-{}".format, digits)),
    "dashes": ("phone", st.builds("415-555-{}".format, digits)),
    "national": ("phone", st.builds("030/555{}0".format, digits)),
    "openai": ("key", st.builds("sk-proj-{}".format, random_(20, 60, WORD + "_-"))),
    "github": ("key", st.builds("ghp_{}".format, random_(36, 36))),
    "aws": ("key", st.builds("AKIA{}".format, random_(16, 16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))),
    "ours": ("key", st.builds("sk-openclaw-{}".format, random_(32, 32, WORD + "_-"))),
    "jwt": ("token", st.builds("eyJ{}.eyJ{}.{}".format, *[random_(10, 40, WORD + "_-")] * 3)),
    "v4": (
        "ip",
        st.ip_addresses(v=4).filter(lambda a: not (a.is_loopback or a.is_unspecified)).map(str),
    ),
    "v6": ("ip", st.integers(1, 2**64).map(lambda n: f"2001:db8::{n & 0xFFFF:x}:{n >> 48:x}")),
    "linux": ("home", st.builds("/home/{}".format, names)),
    "mac": ("home", st.builds("/Users/{}".format, names)),
    "windows": ("home", st.builds(r"C:\Users\{}".format, names)),
}
secret = st.sampled_from(sorted(SECRETS)).flatmap(
    lambda name: st.tuples(st.just(SECRETS[name][0]), SECRETS[name][1])
)
around = st.sampled_from(
    [" ", "\n", ", ", ' "', "' ", "(", ") ", "> ", r"\n", "\t", "; ", "=", " `", "` "]
)
pieces = st.lists(st.tuples(around, secret, around), min_size=1, max_size=5)
NASTY = [
    "a",
    "1",
    "@",
    ".",
    "/home/a",
    "+1415555010",
    "0",
    ":",
    "-",
    "eyJabcdefgh",
    " ",
    "\\n",
    "[KEY]",
    "token=",
]
nasty = st.lists(st.sampled_from(NASTY), max_size=30).map("".join)


@settings(deadline=None)
@given(pieces)
def test_no_known_secret_survives(parts: list[tuple[str, tuple[str, str], str]]) -> None:
    text = "So: ".join(f"{before}{found}{after}" for before, (_, found), after in parts)
    clean, counts = scrub_text(text)
    for _, (kind, found), _ in parts:
        assert found not in clean
        assert counts[kind]


@settings(deadline=None, max_examples=300)
@given(st.one_of(nasty, st.text(), pieces.map(lambda p: "".join(a + s[1] + b for a, s, b in p))))
def test_text_without_personal_data_is_unchanged(text: str) -> None:
    clean, _ = scrub_text(text)
    again, counts = scrub_text(clean)
    assert (again, counts.total()) == (clean, 0)


@pytest.mark.parametrize(
    "text",
    [
        "react@18.2.0, x@w.T; git@github.com:a/b; @app.route",
        "on 01-02-2026 at 10:30, or 2026-03-01T12:00:00+00:00; 5,000,000; 3.14159; version 1.2.3",
        "http://127.0.0.1:8000 and ::1 and 0.0.0.0; std::vector; https://x.com/home/page",
        "token = tokenizer.decode(x1); max_tokens=4096; task-force-of-many-brave-people",
        "chatcmpl-0123456789abcdef0123456789abcdef 123e4567-e89b-12d3-a456-426614174000 user_session_abc123",
        "the basic understanding-of-many-things",
        "q@k.transpose(1), (q@k.mT).softmax(-1), y = x@w.T + b, x@w.to(device), q@k.dot(v)",
    ],
)
def test_impersonal_data_is_unchanged(text: str) -> None:
    assert scrub_text(text)[0] == text


DOMAINS = (
    "example.com EXAMPLE.COM Example.De a.co.uk x.museum x.berlin x.photography x.bd x.io x.dev nas.local git.corp "
    "x.xn--p1ai b\u00fccher.de \u043f\u0440\u0438\u043c\u0435\u0440.\u0440\u0444 x.zip x.name mail.example"
)


@pytest.mark.parametrize("domain", DOMAINS.split())
@pytest.mark.parametrize(
    "around", ["{}", "<{}>", "_{}_", "{}.", "({})", "mailto:{}?subject=x", "{}.bak", "{}-old"]
)
def test_addresses_of_all_kinds_of_domains_are_removed(domain: str, around: str) -> None:
    text = around.format(f"alice.b+news@{domain}")
    clean, counts = scrub_text(text)
    assert counts["email"] == 1
    assert "alice" not in clean
    assert domain not in clean


def test_a_bracket_after_an_address_is_no_call() -> None:
    assert (
        scrub_text("alice@example.com(work), bob@example.de(home)")[0]
        == "[EMAIL](work), [EMAIL](home)"
    )


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgres://me:hunter2@db.example.com/x", "postgres://me:[TOKEN]@db.example.com/x"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer [TOKEN]"),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "aws_secret_access_key = [TOKEN]",
        ),
        ('{"password": "p@ss-w0rd"}', '{"password": "[TOKEN]"}'),
        (r'{"out": "ok\nsk-abcdefghijklmnop12\n10.0.0.1"}', r'{"out": "ok\n[KEY]\n[IP]"}'),
        (r"C:\Users\Alice Smith\x and /mnt/c/Users/bob/x", r"[HOME]\x and [HOME]/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- ok", "[KEY] ok"),
    ],
)
def test_surrounding_text_is_unchanged(text: str, clean: str) -> None:
    assert scrub_text(text)[0] == clean


UNITS = [
    "a",
    "a.",
    "a@",
    "a@a.",
    "1",
    "1.",
    "+1",
    "0 ",
    "415-",
    ":",
    "a:",
    "/home/",
    "/home/a",
    "/a",
    "C:\\Users\\",
    "sk-",
]
UNITS += [
    "eyJ",
    "eyJabcdefgh.",
    "://a:",
    "://a",
    "bearer ",
    "token=",
    "token",
    "password ",
    "\\n",
    "a\\n",
    "-----BEGIN PRIVATE KEY-----",
]
UNITS += [
    "/home/a+14155550100",
    "a@b.cc/home/a",
    "x/home/a/home/",
    "-",
    "_",
    " ",
    "SG.",
    "[EMAIL]",
    "[HOME]/home/a",
    "(030) ",
    "1:",
]


@pytest.mark.parametrize("unit", UNITS)
def test_redaction_takes_linear_time(unit: str) -> None:
    check_linear_growth(scrub_text, lambda size: unit * (size // len(unit)), 80_000)


# --------------------------------------------------------------------------------------- the export

CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "look", "arguments": '{"path": "/home/alice/x", "n": [1]}'},
}
TALK: dict[str, Any] = {
    "session_id": "alice@example.com",
    "user": "alice@example.com",
    "turns": [
        main("Hello", "Yo", next_state="mail me: alice@example.com"),
        main(
            "mail me: alice@example.com",
            "",
            message={"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        main(
            "More",
            "Fine, 10.1.2.3",
            next_state="ok",
            verdict={"score": 1, "hints": ["call +1 415 555 0100"]},
        ),
    ],
}


def sent(home: Home, to: Path, **more: Any) -> str:
    export_sessions(
        home.config,
        str(to),
        names=(),
        since=None,
        form=more.pop("form", "trajectories"),
        redact=True,
    )
    return to.read_text(encoding="utf-8") if to.is_file() else ""


def test_a_redacted_export_has_no_secrets_and_can_be_imported(tmp_path: Path, home: Home) -> None:
    home.bring(
        put(tmp_path / "in.jsonl", TALK, {"session_id": "plain", "turns": [main("Hi", "Yo")]}),
        score=True,
    )
    text = sent(home, tmp_path / "out.jsonl")
    for word in ("alice", "10.1.2.3", "555 0100"):
        assert word not in text
    marked, plain = (json.loads(line) for line in text.splitlines())
    if marked["session_id"] == "plain":
        marked, plain = plain, marked
    first, second, third = marked["turns"]
    assert first["removed"] == ["email"]
    assert first["identity"] == IDENTITY, "it was said later: its own tokens tell nothing"
    for turn in (second, third):
        assert not {"prompt_ids", "response_ids", "logprobs", "identity"} & turn.keys()
        assert turn["off_policy"]
    arguments = second["message"]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"path": "[HOME]/x", "n": [1]}
    assert third["removed"] == ["email", "phone", "ip", "home"]
    assert first["user"].startswith("redacted-")
    assert first["user"] == second["user"]
    assert "removed" not in plain["turns"][0]
    other = Home.open(tmp_path / "other")
    report = other.bring(tmp_path / "out.jsonl")
    assert report.refused_count == 0, report.examples
    assert report.counts.turns == 4
    assert sent(other, tmp_path / "again.jsonl").count("[EMAIL]") == text.count("[EMAIL]")
    other.store.close()


def test_redacted_files_and_rows_have_no_secrets(
    tmp_path: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.bring(put(tmp_path / "in.jsonl", TALK), score=True)
    sent(home, tmp_path / "folder")
    (file,) = (tmp_path / "folder").iterdir()
    assert file.name.startswith("redacted-")
    assert json.loads(file.read_text())["session_id"] == file.stem
    capsys.readouterr()
    (row,) = sent(home, tmp_path / "rows.jsonl", form="turns").splitlines()
    assert json.loads(row)["next_state"] == "mail me: [EMAIL]"
    assert "alice" not in row
    assert "2 turns without text" in " ".join(capsys.readouterr().out.split())
    export_sessions(
        home.config,
        str(tmp_path / "all.parquet"),
        names=(),
        since=None,
        form="trajectories",
        redact=True,
    )
    assert b"alice" not in (tmp_path / "all.parquet").read_bytes()


def test_the_command_counts_redactions(tmp_path: Path, home: Home) -> None:
    home.bring(put(tmp_path / "in.jsonl", TALK))
    done = run(
        "data", "export", str(tmp_path / "o.jsonl"), "--redact", "--home", str(tmp_path / "home")
    )
    assert done.returncode == 0, done.stderr
    assert "redacted: 2 email, 1 phone, 1 ip, 1 home; 2 of 3 turns left without" in " ".join(
        done.stdout.split()
    )


def test_parts_are_read_as_the_model_reads_them() -> None:
    """A mail address in two parts of a content is one."""
    parts = [
        {"type": "text", "text": "alice@"},
        {"type": "text", "text": "example.com"},
        {"type": "image_url"},
    ]
    turn = {
        "type": "main",
        "messages": [{"role": "user", "content": parts}],
        "message": {"content": "ok"},
    }
    clean = TrajectoryRedactor(b"k" * 32).redact_turn(turn)
    assert clean["prompt"].startswith("[EMAIL]")
    assert clean["messages"][0]["content"] == [
        {"type": "text", "text": "[EMAIL]"},
        {"type": "image_url"},
    ]


def test_a_digest_of_an_image_becomes_a_keyed_one() -> None:
    """Whoever has the image could recognise it; equal images stay equal."""
    image = {
        "type": "image",
        "sha256": "ab" * 32,
        "media_type": "image/png",
        "width": 1,
        "height": 1,
    }
    parts = [{"type": "text", "text": "see"}, image, image | {"sha256": "cd" * 32}, image]
    turn = {
        "type": "main",
        "messages": [{"role": "user", "content": parts}],
        "message": {"content": "ok"},
    }
    clean = TrajectoryRedactor(b"k" * 32).redact_turn(turn)
    _, one, other, again = clean["messages"][0]["content"]
    assert one == again != other
    assert one == image | {"sha256": one["sha256"]}
    assert "ab" * 32 not in str(clean)
    assert "ab" * 32 not in str(TrajectoryRedactor(b"j" * 32).redact_turn(turn))
    plain = {
        "messages": [{"role": "user", "content": "Hi"}],
        "message": {"content": "ok"},
        "prompt_ids": [1],
    }
    said = plain | {"next_state": [{"role": "user", "content": [image]}]}
    row = dict.fromkeys(("session_id", "turn_id", "agent", "untrainable"), "")
    row |= {"hints_json": "[]", "next_state": "ab" * 32}
    redactor = TrajectoryRedactor(b"k" * 32)
    flat = redactor.redact_row(row, redactor.redact_turn(said))
    assert flat is not None
    assert flat["next_state"] == f"[image {one['sha256']}]"


@pytest.mark.parametrize(
    ("status", "kept"), [("done", True), ("failed", False), ("cancelled", False)]
)
def test_the_status_decides_whether_tokens_are_kept(status: str, kept: bool) -> None:
    turn = {
        "messages": [{"role": "user", "content": "Hi"}],
        "message": {"content": ""},
        "status": status,
    }
    assert (
        "prompt_ids"
        in TrajectoryRedactor(b"k" * 32).redact_turn(
            turn | {"prompt_ids": [1], "response_ids": [2]}
        )
    ) == kept


def test_tokens_of_a_prompt_with_a_lesson_are_removed() -> None:
    said = {
        "messages": [{"role": "user", "content": "hi"}],
        "message": {"role": "assistant", "content": "ok"},
    }
    turn = said | {
        "prompt_ids": [1],
        "response_ids": [2],
        "lessons": {"0badcafe": "Sign as ann@mail.org."},
    }
    clean = TrajectoryRedactor(b"k" * 32).redact_turn(turn)
    assert "ann@mail.org" not in str(clean)
    assert "prompt_ids" not in clean
