"""A thin client of the Kubernetes API: objects are plain dicts, errors are typed, nothing is cached.

Writes ask for strict field validation: a field that the server does not know is an error, not silence.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

import orjson

from tidewheel.clients.access import Access, load_access
from tidewheel.clients.errors import Gone, ServerUnavailable, error_from_status
from tidewheel.clients.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    MODEL_VERSIONS,
    NAMESPACES,
    NODES,
    PODS,
    ROUTING_RULES,
    ROUTING_TABLES,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SELF_SUBJECT_REVIEWS,
    SERVICES,
    KubeObject,
    Resource,
)
from tidewheel.clients.transport import Answer, Call, ClientSettings, OnAnswer, Transport

__all__ = [
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "DEPLOYMENTS",
    "ENDPOINT_SLICES",
    "EVENTS",
    "LEASES",
    "MODEL_VERSIONS",
    "NAMESPACES",
    "NODES",
    "PODS",
    "ROUTING_RULES",
    "ROUTING_TABLES",
    "SECRETS",
    "SELF_SUBJECT_ACCESS_REVIEWS",
    "SELF_SUBJECT_REVIEWS",
    "SERVICES",
    "Access",
    "Answer",
    "ClientSettings",
    "KubeClient",
    "KubeObject",
    "ObjectList",
    "Resource",
    "WatchEvent",
    "load_access",
]


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A collection as it was at ``resource_version``."""

    items: list[KubeObject]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED, or BOOKMARK, whose object carries a resource version and nothing else."""

    type: str
    object: KubeObject


class KubeClient:
    """One identity at one API server. Use as an async context manager.

    ``user_agent`` is also the default field manager of writes. Every method raises ClientsError: ApiError, or
    AccessError where there are no credentials to show. ``on_answer`` hears of every call and its status.
    """

    def __init__(
        self,
        access: Access,
        *,
        user_agent: str = "tidewheel",
        settings: ClientSettings | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.access = access
        self.settings = settings or ClientSettings()
        self._manager = user_agent
        self._transport = Transport(access, user_agent=user_agent, settings=self.settings, on_answer=on_answer)

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._transport.__aexit__(*exc_info)

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, subresource: str | None = None
    ) -> KubeObject:
        """The object as it is now (a quorum read)."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return _parsed(await self._transport.send(Call(method="GET", path=path, idempotent=True)))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> ObjectList:
        """All objects at one resource version, in pages; begins again if the pages expire on the way."""
        selectors = _selectors(label_selector, field_selector)
        try:
            return await self._list(resource, namespace, {**selectors, "limit": str(self.settings.page_size)})
        except Gone:
            return await self._list(resource, namespace, selectors)

    async def _list(self, resource: Resource, namespace: str | None, params: Mapping[str, str]) -> ObjectList:
        path, items, following = resource.path(namespace=namespace), [], ""
        while True:
            page_params = {**params, "continue": following} if following else params
            call = Call(method="GET", path=path, params=page_params, idempotent=True)
            page = _parsed(await self._transport.send(call))
            if "resourceVersion" not in page.get("metadata", {}):
                raise _not_understood(str(call), orjson.dumps(page))
            for item in page.get("items") or ():
                # Lists of built-in kinds leave these two out.
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
                items.append(item)
            following = page["metadata"].get("continue") or ""
            if not following:
                return ObjectList(items, page["metadata"]["resourceVersion"])

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Every change after ``resource_version`` until the server ends the watch, after about ``watch_seconds``.

        Raises Gone when that version is compacted, ServerUnavailable after ``silence_seconds`` without a byte.
        """
        params = {
            **_selectors(label_selector, field_selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(self.settings.watch_seconds),
        }
        call = Call(method="GET", path=resource.path(namespace=namespace), params=params)
        async with self._transport.stream(call) as pieces, aclosing(_lines(pieces, call)) as lines:
            async for line in lines:
                event = _parsed_event(line, call)
                if event.type == "ERROR":
                    raise error_from_status(event.object, call=f"watch {call.path}")
                yield event

    async def create(self, resource: Resource, body: KubeObject) -> KubeObject:
        """POST. Not repeated without an answer: read before trying again."""
        return await self._write("POST", resource.path(namespace=_namespace(body)), body)

    async def apply(
        self, resource: Resource, body: KubeObject, *, field_manager: str | None = None, force: bool = False
    ) -> KubeObject:
        """Server-side apply. Without ``force`` a field that another manager owns is a Conflict naming it."""
        return await self._apply(resource, body, field_manager=field_manager, force=force)

    async def apply_status(
        self, resource: Resource, body: KubeObject, *, field_manager: str | None = None, force: bool = False
    ) -> KubeObject:
        """Server-side apply of ``status`` alone."""
        return await self._apply(resource, body, subresource="status", field_manager=field_manager, force=force)

    async def patch_json(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        operations: Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
    ) -> KubeObject:
        """JSON patch; a ``test`` operation that fails is Invalid."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._write("PATCH", path, operations, content_type="application/json-patch+json")

    async def patch_merge(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> KubeObject:
        """JSON merge patch; with ``metadata.resourceVersion`` in it, a Conflict when somebody was first."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._write("PATCH", path, patch, content_type="application/merge-patch+json")

    async def patch_strategic(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> KubeObject:
        """Strategic merge patch, for built-in kinds: lists such as conditions are merged by their key."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._write("PATCH", path, patch, content_type="application/strategic-merge-patch+json")

    async def replace(self, resource: Resource, body: KubeObject, *, subresource: str | None = None) -> KubeObject:
        """PUT; with ``metadata.resourceVersion`` in the body, a Conflict when somebody was first."""
        path = resource.path(namespace=_namespace(body), name=body["metadata"]["name"], subresource=subresource)
        return await self._write("PUT", path, body)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: str | None = None,
    ) -> None:
        """Deletes if ``uid`` and ``resource_version`` hold, else Conflict. Sent again only if ``uid`` makes it safe."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if held := {key: value for key, value in preconditions.items() if value is not None}:
            options["preconditions"] = held
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        await self._transport.send(
            Call(
                method="DELETE",
                path=resource.path(namespace=namespace, name=name),
                body=orjson.dumps(options),
                idempotent=uid is not None,
            )
        )

    async def request_raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_seconds: float | None = None,
    ) -> Answer:
        """The answer whatever its status, such as a pod's own through ``pods/NAME:PORT/proxy/PATH``; tried once."""
        call = Call(method=method, path=path, params=params or {}, body=body, content_type=content_type)
        seconds = timeout_seconds or self.settings.timeout_seconds
        answer = await self._transport.send_once(call, timeout_seconds=seconds)
        if answer.status == 401:
            self.access.credentials.invalidate()
            answer = await self._transport.send_once(call, timeout_seconds=seconds)
        return answer

    async def _apply(
        self,
        resource: Resource,
        body: KubeObject,
        *,
        field_manager: str | None,
        force: bool,
        subresource: str | None = None,
    ) -> KubeObject:
        path = resource.path(namespace=_namespace(body), name=body["metadata"]["name"], subresource=subresource)
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self._write(
            "PATCH",
            path,
            body,
            content_type="application/apply-patch+yaml",
            idempotent=True,
            params={"fieldManager": field_manager or self._manager, "force": "true" if force else "false"},
        )

    async def _write(
        self,
        method: str,
        path: str,
        body: object,
        *,
        content_type: str = "application/json",
        idempotent: bool = False,
        params: Mapping[str, str] | None = None,
    ) -> KubeObject:
        call = Call(
            method=method,
            path=path,
            body=orjson.dumps(body),
            content_type=content_type,
            idempotent=idempotent,
            params={"fieldManager": self._manager, "fieldValidation": "Strict", **(params or {})},
        )
        return _parsed(await self._transport.send(call))


def _parsed(answer: Answer) -> KubeObject:
    try:
        parsed = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise _not_understood("", answer.body) from error
    if not isinstance(parsed, dict):
        raise _not_understood("", answer.body)
    return parsed


def _parsed_event(line: bytes, call: Call) -> WatchEvent:
    try:
        event = orjson.loads(line)
        return WatchEvent(event["type"], event["object"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise _not_understood(f"watch {call.path}", line) from error


def _not_understood(call: str, body: bytes) -> ServerUnavailable:
    """Something between us and the API server answered in its place."""
    return ServerUnavailable(0, "NotUnderstood", f"not an answer of an API server: {body[:100]!r}", call=call)


def _namespace(body: KubeObject) -> str | None:
    namespace: str | None = body["metadata"].get("namespace") if "metadata" in body else None
    return namespace


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in selectors.items() if value}


async def _lines(pieces: AsyncIterator[bytes], call: Call) -> AsyncGenerator[bytes, None]:
    """Whole lines; a stream that ends inside one was cut, whatever its framing says."""
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        while (end := rest.find(b"\n")) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            if line:
                yield line
    if rest:
        raise ServerUnavailable(0, "CutInMidLine", "the watch ended inside an event", call=f"watch {call.path}")
