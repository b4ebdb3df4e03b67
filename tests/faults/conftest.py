"""The same client and namespace as the client's own tests."""

from tests.clients.conftest import access, client, namespace

__all__ = ["access", "client", "namespace"]
