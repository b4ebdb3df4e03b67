"""Where the API server is and who we are: from a kubeconfig or from the pod's service account."""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tidewheel.clients.credentials import Credentials, ExecPlugin, StaticToken, TokenFile
from tidewheel.clients.errors import AccessError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
USER_KUBECONFIG: Final = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class Access:
    """One API server seen by one identity. ``namespace`` is the default of the context."""

    server: str
    namespace: str = "default"
    credentials: Credentials = field(default_factory=StaticToken)
    ssl_context: ssl.SSLContext | None = None
    server_hostname: str | None = None
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    source: str = ""


def load_access(*, kubeconfig: Path | None = None, context: str | None = None) -> Access:
    """The file given, else $KUBECONFIG (a list), else the pod's service account, else ~/.kube/config: kubectl's order.

    Raises AccessError, naming what to mend.
    """
    if kubeconfig is not None:
        return _from_kubeconfig([kubeconfig], context)
    if listed := [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]:
        existing = [path for path in listed if path.exists()]
        if not existing:
            raise AccessError(f"KUBECONFIG names {listed[0]}, which does not exist; correct it or unset it")
        return _from_kubeconfig(existing, context)
    if "KUBERNETES_SERVICE_HOST" in os.environ and context is None:
        return _from_service_account(SERVICE_ACCOUNT, os.environ)
    user_file = USER_KUBECONFIG.expanduser()
    if user_file.exists():
        return _from_kubeconfig([user_file], context)
    raise AccessError("no API server is known: give --kubeconfig FILE or set KUBECONFIG")


def _from_service_account(folder: Path, environment: Mapping[str, str]) -> Access:
    host = environment["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    ca_file = folder / "ca.crt"
    if not ca_file.exists():
        raise AccessError(f"{ca_file} does not exist: the pod has no service account token mounted")
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError:
        namespace = "default"
    return Access(
        server=f"https://{host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}",
        namespace=namespace,
        credentials=TokenFile(folder / "token"),
        ssl_context=ssl.create_default_context(cafile=str(ca_file)),
        source="service account",
    )


def _from_kubeconfig(paths: list[Path], context_name: str | None) -> Access:
    config = _merge(_read(path) for path in paths)
    source = ", ".join(str(path) for path in paths)
    name = context_name or config["current-context"]
    if not name:
        raise AccessError(f"{source}: no current-context; choose one with `kubectl config use-context`")
    context = _named(config, "contexts", name=name, source=source)
    cluster = _named(config, "clusters", name=str(context.get("cluster")), source=source)
    user = _named(config, "users", name=str(context["user"]), source=source) if context.get("user") else {}
    if not cluster.get("server"):
        raise AccessError(f"{source}: cluster {context.get('cluster')} names no server")
    server = str(cluster["server"]).rstrip("/")
    return Access(
        server=server,
        namespace=str(context.get("namespace") or "default"),
        credentials=_credentials(user, source),
        ssl_context=_ssl_context(cluster, user, source) if server.startswith("https:") else None,
        server_hostname=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        headers=_impersonation(user),
        source=source,
    )


def _read(path: Path) -> dict[str, Any]:
    """One kubeconfig with its file names made absolute, for they are relative to the file that names them."""
    try:
        config = yaml.safe_load(path.expanduser().read_text()) or {}
    except OSError as error:
        raise AccessError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise AccessError(f"kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise AccessError(f"kubeconfig {path} is not a mapping")
    folder = path.expanduser().resolve().parent
    for plural, singular in (("clusters", "cluster"), ("users", "user")):
        for entry in config.get(plural) or ():
            body = entry.get(singular) or {}
            for key in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
                if body.get(key):
                    body[key] = str(folder / body[key])
            command = (body.get("exec") or {}).get("command", "")
            if "/" in command:
                body["exec"]["command"] = str(folder / command)
    return config


def _merge(configs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several files as one; the first to name something wins, as in kubectl."""
    merged: dict[str, Any] = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for config in configs:
        merged["current-context"] = merged["current-context"] or config.get("current-context") or ""
        for plural, singular in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            for entry in config.get(plural) or ():
                merged[plural].setdefault(entry.get("name"), entry.get(singular) or {})
    return merged


def _named(config: dict[str, Any], plural: str, *, name: str, source: str) -> dict[str, Any]:
    entries: dict[str, dict[str, Any]] = config[plural]
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise AccessError(f"{source}: {plural} has no {name}; it has: {known}")
    return entries[name]


def _credentials(user: dict[str, Any], source: str) -> Credentials:
    if user.get("tokenFile"):
        return TokenFile(Path(user["tokenFile"]))
    if user.get("token"):
        return StaticToken(str(user["token"]))
    if plugin := user.get("exec"):
        return ExecPlugin(
            command=(str(plugin["command"]), *(str(argument) for argument in plugin.get("args") or ())),
            environment={str(entry["name"]): str(entry["value"]) for entry in plugin.get("env") or ()},
            api_version=str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1"),
        )
    for key in ("auth-provider", "username"):
        if user.get(key):
            raise AccessError(f"{source}: {key} is no longer served by Kubernetes; use a token or an exec plugin")
    return StaticToken()


def _impersonation(user: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    headers = [("Impersonate-User", str(user["as"]))] if user.get("as") else []
    headers += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or ()]
    return tuple(headers)


def _ssl_context(cluster: dict[str, Any], user: dict[str, Any], source: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cafile=cluster.get("certificate-authority"),
            cadata=_decoded(cluster["certificate-authority-data"]).decode()
            if cluster.get("certificate-authority-data")
            else None,
        )
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _load_client_certificate(context, user)
    except (OSError, ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
        raise AccessError(f"{source}: a certificate cannot be loaded: {error}") from error
    return context


def _load_client_certificate(context: ssl.SSLContext, user: dict[str, Any]) -> None:
    """Inline keys pass through a folder only we can read: the ssl module loads from files alone."""
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, str | None] = {}
        for key in ("client-certificate", "client-key"):
            files[key] = user.get(key)
            if user.get(f"{key}-data"):
                path = Path(folder) / key
                path.write_bytes(_decoded(user[f"{key}-data"]))
                files[key] = str(path)
        if certificate := files["client-certificate"]:
            context.load_cert_chain(certificate, files["client-key"])


def _decoded(data: str) -> bytes:
    return base64.b64decode(data, validate=True)
