"""Rights for the programs that run beside the control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_GROUP = "rbac.authorization.k8s.io"


def grant(user: str, rules: Sequence[Mapping[str, Sequence[str]]]) -> list[dict[str, object]]:
    """A ClusterRole with these rules, bound to a user of the same name."""
    api, metadata = f"{_GROUP}/v1", {"name": user}
    role: dict[str, object] = {
        "apiVersion": api,
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": [dict(rule) for rule in rules],
    }
    binding: dict[str, object] = {
        "apiVersion": api,
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": user}],
    }
    return [role, binding]
