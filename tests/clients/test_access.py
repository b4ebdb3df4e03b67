"""From files and environment to an identity at a server."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidewheel.cli.cluster.certificates import CertificateAuthority
from tidewheel.clients.access import load_access
from tidewheel.clients.credentials import ExecPlugin, StaticToken, TokenFile
from tidewheel.clients.errors import AccessError


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine has, the tests see none of it."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def kubeconfig(path: Path, *, name: str = "here", user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    """A kubeconfig with one context."""
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": name, "cluster": {"server": f"http://{name}:8001", **cluster}}],
                "users": [{"name": name, "user": user or {}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
                "current-context": name,
            }
        )
    )
    return path


def test_a_file_that_is_given_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "a", name="a")))
    access = load_access(kubeconfig=kubeconfig(tmp_path / "b", name="b"))
    assert (access.server, access.namespace) == ("http://b:8001", "ns-b")


def test_the_variable_lists_files_and_the_first_to_name_something_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [kubeconfig(tmp_path / name, name=name) for name in ("a", "b")]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(str(path) for path in (tmp_path / "absent", *files)))
    assert load_access().server == "http://a:8001"
    assert load_access(context="b").server == "http://b:8001"


def test_the_home_folder_is_the_last_resort(tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".kube"
    folder.mkdir(parents=True)
    kubeconfig(folder / "config", name="home")
    assert load_access().server == "http://home:8001"


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("abc")
    (account / "namespace").write_text("shop")
    (tmp_path / "pki").mkdir()
    (account / "ca.crt").write_bytes(CertificateAuthority(tmp_path / "pki").files.certificate.read_bytes())
    monkeypatch.setattr("tidewheel.clients.access.SERVICE_ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = load_access()
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "shop")
    assert isinstance(access.credentials, TokenFile)


@pytest.mark.parametrize(
    ("user", "kind"),
    [
        pytest.param({}, StaticToken, id="nobody"),
        pytest.param({"token": "abc"}, StaticToken, id="token"),
        pytest.param({"tokenFile": "token"}, TokenFile, id="token file"),
        pytest.param({"exec": {"command": "login", "apiVersion": "v1"}}, ExecPlugin, id="exec plugin"),
    ],
)
def test_each_kind_of_login(tmp_path: Path, user: dict[str, Any], kind: type) -> None:
    assert isinstance(load_access(kubeconfig=kubeconfig(tmp_path / "k", user=user)).credentials, kind)


def test_files_are_relative_to_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    access = load_access(kubeconfig=kubeconfig(tmp_path / "k", user={"tokenFile": "sub/token"}))
    assert access.credentials == TokenFile(tmp_path / "sub" / "token")


def test_impersonation_and_proxy_are_taken_over(tmp_path: Path) -> None:
    user = {"as": "alice", "as-groups": ["sre", "dev"]}
    access = load_access(kubeconfig=kubeconfig(tmp_path / "k", user=user, **{"proxy-url": "http://p:3128"}))
    assert access.headers == (
        ("Impersonate-User", "alice"),
        ("Impersonate-Group", "sre"),
        ("Impersonate-Group", "dev"),
    )
    assert access.proxy == "http://p:3128"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("", "no current-context; choose one", id="empty"),
        pytest.param("a: [", "is not YAML", id="not YAML"),
        pytest.param("- a", "is not a mapping", id="a list"),
        pytest.param("current-context: x", "contexts has no x; it has: none", id="unknown context"),
        pytest.param(
            "{current-context: x, contexts: [{name: x, context: {cluster: c}}]}",
            "clusters has no c",
            id="unknown cluster",
        ),
        pytest.param(
            "{current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {}}]}",
            "names no server",
            id="no server",
        ),
    ],
)
def test_a_broken_file_says_what_to_mend(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(AccessError, match=sentence) as refused:
        load_access(kubeconfig=path)
    assert str(path) in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AccessError, match="nowhere cannot be read"):
        load_access(kubeconfig=tmp_path / "nowhere")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(AccessError, match="nowhere, which does not exist; correct it or unset it"):
        load_access()


def test_without_anything_the_way_out_is_said() -> None:
    with pytest.raises(AccessError, match="give --kubeconfig FILE or set KUBECONFIG"):
        load_access()


@pytest.mark.parametrize("user", [{"auth-provider": {"name": "gcp"}}, {"username": "u", "password": "p"}])
def test_logins_that_kubernetes_dropped_are_refused_and_not_ignored(tmp_path: Path, user: dict[str, Any]) -> None:
    with pytest.raises(AccessError, match="use a token or an exec plugin"):
        load_access(kubeconfig=kubeconfig(tmp_path / "k", user=user))


def test_a_broken_certificate_is_an_access_error(tmp_path: Path) -> None:
    broken = base64.b64encode(b"not a certificate").decode()
    cluster: dict[str, Any] = {"certificate-authority-data": broken}
    path = kubeconfig(tmp_path / "k", server="https://x:1", **cluster)
    with pytest.raises(AccessError, match="a certificate cannot be loaded"):
        load_access(kubeconfig=path)
