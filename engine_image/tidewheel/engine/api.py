"""The HTTP surface. Each route is a few lines; validation lives in `schema`, work in `service`."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from tidewheel.engine.errors import GenerationError, InvalidRequestError, ModelNotFoundError, RequestError
from tidewheel.engine.middleware import BearerToken, RequestId
from tidewheel.engine.openai import ChatDialect, CompletionDialect, Envelope
from tidewheel.engine.responses import ReplyResponse, error_response
from tidewheel.engine.schema import ChatBody, CompletionBody, GenerationBody, parse
from tidewheel.engine.service import Service
from tidewheel.engine.tracing import trace_parent

logger = logging.getLogger(__name__)


def create_app(service: Service, *, tokens: Callable[[], Sequence[str]] | None, version: str) -> ASGIApp:
    app = FastAPI(title="Tidewheel engine", version=version, docs_url=None, redoc_url=None, openapi_url=None)
    _add_generation_routes(app, service, fingerprint=f"tidewheel-{service.engine.runner.name}-{version}")
    _add_model_routes(app, service)
    _add_probes(app, service)
    _add_control_routes(app, service)
    _add_error_handlers(app)
    return RequestId(BearerToken(app, tokens=tokens))


def _json(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


def _add_generation_routes(app: FastAPI, service: Service, *, fingerprint: str) -> None:
    def envelope(body: GenerationBody, prefix: str) -> Envelope:
        return Envelope(
            id=f"{prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=body.model,
            fingerprint=fingerprint,
            returns_token_ids=body.return_token_ids,
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = parse(ChatBody, await _read_body(request, service))
        _check_model(body.model, service)
        reply = await service.open_chat(body, **_origin(request, service))
        reply.parent = trace_parent(request.headers)
        dialect = ChatDialect(envelope(body, "chatcmpl"), service.tokenizer.token_bytes)
        return ReplyResponse(service, reply, dialect, stream=body.stream, includes_usage=body.includes_usage)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = parse(CompletionBody, await _read_body(request, service))
        _check_model(body.model, service)
        reply = await service.open_completion(body, **_origin(request, service))
        reply.parent = trace_parent(request.headers)
        dialect = CompletionDialect(envelope(body, "cmpl"), service.tokenizer.token_bytes, echoes=body.echo is True)
        return ReplyResponse(service, reply, dialect, stream=body.stream, includes_usage=body.includes_usage)


def _add_model_routes(app: FastAPI, service: Service) -> None:
    created = int(time.time())

    def card(name: str) -> dict[str, Any]:
        runner = service.engine.runner.name
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "tidewheel" if runner != "simulated" else "tidewheel-simulated",
            "max_model_len": service.engine.scheduler.max_model_len,
            "runner": runner,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [card(name) for name in service.model_names]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        _check_model(name, service)
        return _json(card(name))


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        stalled = service.engine.seconds_without_progress()
        document = {
            "healthy": service.is_healthy,
            "dead": service.engine.death is not None,
            "seconds_without_progress": round(stalled, 3),
        }
        return _json(document, 200 if service.is_healthy else 503)

    @app.get("/ready")
    async def ready() -> Response:
        document = {"ready": service.is_ready, "warm": service.is_warm, "draining": service.is_draining}
        return _json(document, 200 if service.is_ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_control_routes(app: FastAPI, service: Service) -> None:
    @app.get("/load")
    async def load() -> Response:
        return _json(service.load())

    @app.post("/drain")
    async def drain() -> Response:
        service.start_draining()
        service.refuses_work = True
        load = service.load()
        return _json({"draining": True, "running": load["running"], "waiting": load["waiting"]})

    @app.post("/abort/{label:path}")
    async def abort(label: str) -> Response:
        return _json({"aborted": service.abort(label)})

    @app.get("/tokenizer")
    async def tokenizer() -> Response:
        return Response(service.tokenizer.definition, media_type="application/json")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def on_request_error(request: Request, error: RequestError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        refusal = InvalidRequestError(f"{request.method} {request.url.path}: {str(error.detail).lower()}.")
        refusal.status = error.status_code
        return error_response(refusal)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        logger.error("unexpected error", exc_info=error, extra={"request_id": request.scope.get("request_id")})
        return error_response(GenerationError("The engine failed on this request; the log has the cause."))


def _check_model(name: str, service: Service) -> None:
    if name not in service.model_names:
        served = ", ".join(service.model_names)
        raise ModelNotFoundError(f"The model does not exist here; this engine serves {served}.", param="model")


def _origin(request: Request, service: Service) -> dict[str, str]:
    """Who asks, as the gateway says it; these headers count only behind the bearer token."""
    return {
        "label": request.scope["request_id"],
        "lane": request.headers.get("x-tidewheel-lane", service.settings.default_lane),
        "tenant": request.headers.get("x-tidewheel-tenant", ""),
    }


async def _read_body(request: Request, service: Service) -> bytes:
    limit = service.settings.max_body_bytes
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            error = InvalidRequestError(f"The body is larger than {limit} bytes.")
            error.status = 413
            raise error
    return bytes(body)
