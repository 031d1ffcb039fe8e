"""Task folders of SWE-bench instances: when they are made again, and folders of files. No box is opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from examples.environments.swe_bench_tasks import InstancesRefused, make_task_folders
from tests.sandbox.test_swe_bench import git, make_instance


def write(file: Path, *instances: dict[str, object]) -> Path:
    file.write_text("".join(json.dumps(one) + "\n" for one in instances))
    return file


def settings_of(top: Path, instance: dict[str, object]) -> str:
    return (top / str(instance["instance_id"]) / "task.toml").read_text()


def test_an_unfit_instance_is_made_again_when_its_commit_is_there(tmp_path: Path) -> None:
    instance = make_instance("lru-cache", tmp_path, "pytest") | {"base_commit": "v1"}
    repository = tmp_path / "repos" / "acme__lru-cache"
    file = write(tmp_path / "bench.jsonl", instance)
    assert "does not have the commit v1" in settings_of(make_task_folders(file), instance)
    git(repository, "tag", "v1")
    assert "unfit" not in settings_of(make_task_folders(file), instance)


def test_a_name_of_a_commit_that_moves_makes_the_folder_again(tmp_path: Path) -> None:
    instance = make_instance("lru-cache", tmp_path, "pytest") | {"base_commit": "v1"}
    repository = tmp_path / "repos" / "acme__lru-cache"
    git(repository, "tag", "v1")
    file = write(tmp_path / "bench.jsonl", instance)
    files = make_task_folders(file) / str(instance["instance_id"]) / "environment" / "files"
    (repository / "more.txt").write_text("more\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "more")
    git(repository, "tag", "-f", "v1")
    assert not (files / "more.txt").exists()
    make_task_folders(file)
    assert (files / "more.txt").exists()


def test_a_folder_has_the_instances_of_its_files(tmp_path: Path) -> None:
    first = make_instance("lru-cache", tmp_path, "pytest")
    second = make_instance("working-days", tmp_path, "django")
    write(tmp_path / "a.jsonl", first)
    write(tmp_path / "b.jsonl", second, first)
    top = make_task_folders(tmp_path)
    assert sorted(folder.name for folder in top.iterdir()) == sorted(
        (first["instance_id"], second["instance_id"])
    )
    assert not any("unfit" in settings_of(top, one) for one in (first, second))
    write(tmp_path / "b.jsonl", first | {"problem_statement": "another"})
    with pytest.raises(
        InstancesRefused, match=r"b\.jsonl:1: acme__lru-cache-1 occurs twice, with other content"
    ):
        make_task_folders(tmp_path)


def test_a_folder_without_files_or_instances_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstancesRefused, match=r"no \*\.jsonl in this folder"):
        make_task_folders(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InstancesRefused, match="has no instances"):
        make_task_folders(tmp_path)


def test_a_line_ends_at_its_line_feed(tmp_path: Path) -> None:
    """Files that were written without escapes have other line separators within their texts."""
    instance = make_instance("lru-cache", tmp_path, "pytest") | {
        "problem_statement": "one\u2028two\x85three"
    }
    file = tmp_path / "bench.jsonl"
    file.write_text(json.dumps(instance, ensure_ascii=False) + "\n", encoding="utf-8")
    assert "unfit" not in settings_of(make_task_folders(file), instance)


def test_tests_that_are_no_list_are_refused_with_their_line(tmp_path: Path) -> None:
    instance = make_instance("lru-cache", tmp_path, "pytest") | {"PASS_TO_PASS": "['a']"}
    with pytest.raises(
        InstancesRefused,
        match=r"bench\.jsonl:1: PASS_TO_PASS: expected a list of tests, got \['a'\]",
    ):
        make_task_folders(write(tmp_path / "bench.jsonl", instance))


@pytest.mark.parametrize("leads_to", ["/usr/share/doc", "../../outside"])
def test_a_repository_with_a_link_that_leads_out_is_unfit(tmp_path: Path, leads_to: str) -> None:
    instance = make_instance("lru-cache", tmp_path, "pytest") | {"base_commit": "HEAD"}
    repository = tmp_path / "repos" / "acme__lru-cache"
    (repository / "link").symlink_to(leads_to)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "link")
    top = make_task_folders(write(tmp_path / "bench.jsonl", instance))
    assert "its repository has a link that leads out of it: 'link'" in settings_of(top, instance)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problem_statement": "\ud800"}, "half of a surrogate pair"),
        ({"instance_id": "a" * 300}, "expected a name"),
    ],
)
def test_an_instance_that_makes_no_folder_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    instance = make_instance("lru-cache", tmp_path, "pytest") | change
    with pytest.raises(InstancesRefused, match=rf"bench\.jsonl:1: .*{words}"):
        make_task_folders(write(tmp_path / "bench.jsonl", instance))
