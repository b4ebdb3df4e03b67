"""The pipeline example does what it says: a real Git repository, and programs that stand in for GitHub and cluster."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "gitops"


@dataclass(frozen=True)
class Repository:
    """A clone with the model `chat`, and its origin."""

    clone: Path
    programs: Path

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.clone, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def run(self, script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "OPEN_PULL_REQUEST": "open-pull-request",
        }
        command = [str(EXAMPLE / "pipeline" / script), *arguments]
        return subprocess.run(command, cwd=self.clone, env=environment, capture_output=True, text=True, check=False)

    def pretend(self, name: str, body: str) -> None:
        program = self.programs / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    def split(self) -> list[dict[str, object]]:
        rule = yaml.safe_load((self.clone / "chat" / "traffic.yaml").read_text())
        traffic: list[dict[str, object]] = rule["spec"]["traffic"]
        return traffic


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    origin, clone, programs = (tmp_path / name for name in ("origin.git", "clone", "programs"))
    programs.mkdir()
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", origin], check=True)
    subprocess.run(["git", "clone", "--quiet", origin, clone], check=True, capture_output=True)
    made = Repository(clone, programs)
    for name, value in (("user.name", "ada"), ("user.email", "ada@example.com")):
        made.git("config", name, value)
    made.git("switch", "--quiet", "--create", "main")
    subprocess.run(["cp", "-r", EXAMPLE / "chat", clone], check=True)
    made.git("add", ".")
    made.git("commit", "--quiet", "--message", "chat")
    made.git("push", "--quiet", "origin", "main")
    made.pretend("open-pull-request", f'git log -1 --format=%s >> "{tmp_path}/pulls"; git branch --show-current')
    return made


def test_a_promotion_is_a_pull_request_that_changes_one_file(repository: Repository) -> None:
    done = repository.run("propose.sh", "chat", "v2", "v1")
    assert done.returncode == 0, done.stderr
    assert repository.git("diff", "--name-only", "main", "origin/promote-chat-v2") == "chat/traffic.yaml"
    assert repository.split() == [{"version": "v1", "percent": 0}, {"version": "v2", "percent": 100}]
    assert done.stdout.strip() == "promote-chat-v2"


def test_a_version_that_is_not_in_git_is_not_promoted(repository: Repository) -> None:
    done = repository.run("propose.sh", "chat", "v9")
    assert done.returncode == 1
    assert "commit the version first" in done.stderr
    assert repository.git("branch", "--show-current") == "main"


@pytest.mark.parametrize(("status", "reverted"), [(0, False), (1, True), (3, False), (4, False)])
def test_only_a_rollback_is_taken_back_in_git(repository: Repository, status: int, reverted: bool) -> None:
    """C59: 0 promoted, 1 rolled back, 3 still going on, 4 waits for a person."""
    repository.run("propose.sh", "chat", "v2", "v1")
    repository.pretend("tidewheel", f'[ "$1" = watch ] && exit {status}; exit 0')
    commit = repository.git("rev-parse", "HEAD")
    done = repository.run("follow.sh", "chat", commit, "60")
    assert done.returncode == status
    branches = repository.git("branch", "--remotes", "--format=%(refname:short)").split()
    assert (f"origin/revert-chat-{commit[:12]}" in branches) is reverted
    if reverted:
        assert repository.split() == [{"version": "v1", "percent": 100}]


def test_the_workflow_calls_the_scripts_and_nothing_that_is_not_there() -> None:
    workflow = yaml.safe_load((EXAMPLE / "pipeline" / "promote-model.yaml").read_text())
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    called = set(re.findall(r"pipeline/(\w+\.sh)", "\n".join(steps)))
    assert called == {"propose.sh", "follow.sh"}


def test_the_examples_say_the_same_of_traffic() -> None:
    """The rule names no traffic itself: a forgotten patch is refused by the API server instead of routing nobody."""
    kustomization = yaml.safe_load((EXAMPLE / "chat" / "kustomization.yaml").read_text())
    assert kustomization["patches"] == [{"path": "traffic.yaml"}]
    assert yaml.safe_load((EXAMPLE / "chat" / "rule.yaml").read_text())["spec"]["traffic"] == []
    names = {yaml.safe_load(path.read_text())["metadata"]["name"] for path in (EXAMPLE / "chat" / "versions").iterdir()}
    assert names == {"chat-v1", "chat-v2"}
