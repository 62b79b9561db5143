"""The FastAPI application. The inference routes are plain ASGI endpoints in front of its router.

FastAPI's own routing costs more than a small model's run, so ``__call__`` looks at the path first; everything
that is not an inference goes to FastAPI. Guard and error map are the same for both.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from appliance import __version__
from appliance.api import admin_models, admin_settings, doctor, oip_meta, openapi, session, state, web
from appliance.api.body import Receive, Scope, Send, Unread
from appliance.api.context import Context
from appliance.api.cross_origin import allowed, send_preflight, with_headers
from appliance.api.errors import CLOSE, Headers, body_of, headers_of, internal, send_error, send_unread
from appliance.api.guard import Guard
from appliance.api.hot import ShortWay
from appliance.api.idempotency import REPLAYED
from appliance.api.oip import Infer
from appliance.api.openai import models as openai_models
from appliance.api.openai.embeddings import Embeddings
from appliance.api.openai.endpoints import OpenAI
from appliance.api.openai.rerank import Reranking
from appliance.api.predict import Predict
from appliance.api.routes import hot_route
from appliance.api.triton_generate import TritonGenerate
from appliance.errors import (
    ApplianceError,
    Cancelled,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    Paused,
    RateLimited,
)

log = structlog.get_logger("api")

ByBody = Callable[[Scope, dict[bytes, bytes], str, Receive, Send, Headers], Awaitable[None]]
"""An endpoint whose body names the model: scope, headers, the request's id, receive, send, headers to add."""

_KEEP_OPEN = 64 * 1024  # bodies up to this size are let in and thrown away, so that the connection can go on
_GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Application(FastAPI):
    """FastAPI with the hot routes in front. ``context`` is everything that the routes use."""

    def __init__(self, context: Context) -> None:
        super().__init__(
            title="Inference Appliance",
            version=__version__,
            description=openapi.DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            # Nothing about requests leaves the machine, whatever the environment asks of FastAPI.
            telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        )
        self._context = context
        self._guard = Guard(context.settings, context.keys)
        self._infer = Infer(context)
        self._predict = Predict(context)
        self._generate = TritonGenerate(context)
        openai = OpenAI(context)
        self._by_body: dict[str, ByBody] = {
            "/v1/chat/completions": openai.chat,
            "/v1/completions": openai.completions,
            "/v1/embeddings": Embeddings(context),
            "/v1/rerank": Reranking(context),
        }
        self.short = ShortWay(context, self._guard, self._infer, self._request_id)
        self.include_router(oip_meta.router(context))
        self.include_router(openai_models.router(context))
        self.include_router(state.router(context))
        self.include_router(admin_models.router(context))
        self.include_router(admin_settings.router(context))
        self.include_router(session.router(context))
        self.include_router(doctor.router(context))
        self.include_router(web.router())
        self.include_router(openapi.docs_router())
        self.add_exception_handler(ApplianceError, self._known)
        self.add_exception_handler(Unread, self._unread)
        self.add_exception_handler(Exception, self._fault)
        self.add_exception_handler(RequestValidationError, self._invalid)
        self.add_exception_handler(HTTPException, self._http)

    def renew(self) -> None:
        """Settings, keys or models have changed: nothing that was known of callers counts any more."""
        self._guard.renew()
        self.short.forget()

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document with the hot routes written in."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.with_hot_routes(super().openapi())
        return self.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        path: str = scope["path"]
        request_id = self._request_id(headers)
        sent = complete = False

        async def watched(message: Any) -> None:
            nonlocal sent, complete
            sent = True
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body")

        extra: Headers = []
        try:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                origin = self._guard.check(path, "OPTIONS", headers)
                await send_preflight(watched, origin or "")
                return
            origin = self._guard.check(path, scope["method"], headers)
            if origin is not None:
                extra = allowed(origin)
            if await self._hot(path, scope, headers, request_id, receive, watched, extra):
                return
            scope["state"] = {**scope.get("state", {}), "request_id": request_id}
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}  # uvicorn, which has the first scope, leaves the body out
            await super().__call__(scope, receive, with_headers(watched, request_id, extra))
        except Unread as unread:
            self._count(unread.error, scope, request_id)
            await send_unread(receive, send, unread.error, path, request_id, extra)
        except ApplianceError as error:
            self._count(error, scope, request_id)
            if not sent:
                await send_error(send, error, path, request_id, extra)
        except Exception:
            # The last resort: told in the log with its trace, and to the caller by its id alone.
            log.exception("internal error", request_id=request_id, path=path)
            if complete:
                return
            if sent:
                raise
            fault = internal(request_id)
            self._count(fault, scope, request_id)
            await send_error(send, fault, path, request_id, extra)

    async def _hot(
        self,
        path: str,
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> bool:
        """Answer an inference route; False if the path is none."""
        route = hot_route(path)
        if route is None:
            return False
        model, version, kind = route
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{path[:128]} takes POST, not {scope['method']}")
        if self._context.gate.draining:
            raise Paused("the appliance is shutting down", retry_after_s=5)

        if kind != "body" and self._context.rates.limits(model):  # else the endpoint does it, when it knows the model
            await self._count_in(model, scope, headers)

        async def work(headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
            if kind == "infer":
                await self._infer(model, version, headers, request_id, receive, send, extra)
            elif kind == "predict":
                await self._predict(model, scope, headers, request_id, receive, send, extra)
            elif kind == "body":
                await self._by_body[path](scope, headers, request_id, receive, send, extra)
            else:
                stream = kind == "generate_stream"
                await self._generate(model, version, stream, scope, headers, request_id, receive, send, extra)

        with self._context.drain.request():
            if b"idempotency-key" in headers:
                await self._once(work, scope, headers, request_id, receive, send)
            else:
                await work(headers, receive, send)
        return True

    async def _count_in(self, model: str, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Count the request for the rate limits, before its body is read. Raises RateLimited, Unread with it.

        One whose ``Idempotency-Key`` is known makes no work, and does not count.
        """
        context, key = self._context, headers.get(b"idempotency-key")
        if key is not None and context.idempotency.knows(_who(scope, headers), key.decode("latin-1")):
            return
        try:
            await context.rates.take(model, scope, headers)
        except RateLimited as error:
            if b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > _KEEP_OPEN:
                raise Unread(error) from None
            raise

    async def _once(
        self,
        work: Callable[[dict[bytes, bytes], Receive, Send], Awaitable[None]],
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request with an ``Idempotency-Key``: alone, with others that have it, or from the store."""
        context = self._context
        told = (b"content-type", b"accept", b"accept-encoding", b"inference-header-content-length")
        route = repr((scope["path"], scope["query_string"], [headers.get(name) for name in told]))
        async with context.body(headers, receive) as body:
            plain = {name: value for name, value in headers.items() if name not in (b"content-encoding",)}
            plain[b"content-length"] = b"%d" % len(body)
            answer, joined = await context.idempotency.answer(
                _who(scope, headers),
                headers[b"idempotency-key"].decode("latin-1"),
                route,
                body,
                receive,
                lambda replay, record: work(plain, replay, record),
            )
        own = [(name, value) for name, value in answer.headers if name != b"x-request-id"]
        own += [(b"x-request-id", request_id.encode()), *([REPLAYED] if joined else [])]
        await send({"type": "http.response.start", "status": answer.status, "headers": own})
        await send({"type": "http.response.body", "body": answer.body})

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given is not None:
            text = given.decode("latin-1")
            if _GOOD_ID.fullmatch(text):
                return text
        return self._context.new_request_id()

    def _count(self, error: ApplianceError, scope: Scope, request_id: str) -> None:
        route = None if isinstance(error, Cancelled) else hot_route(scope["path"])
        if route is not None:
            self._context.metrics.refused.labels(error.code).inc()
            model = route.model or scope.get("state", {}).get("model", "")
            self._context.request_log.refused(request_id, model, error)

    async def _known(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApplianceError)
        return _response(error, request)

    async def _unread(self, request: Request, unread: Exception) -> Response:
        assert isinstance(unread, Unread)
        response = _response(unread.error, request)
        response.raw_headers.append(CLOSE)
        return response

    async def _fault(self, request: Request, _: Exception) -> Response:
        return _response(internal(request.scope["state"]["request_id"]), request)

    async def _invalid(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # Not the error's own text: it names the file and line of the route.
        faults = [(".".join(str(part) for part in fault["loc"][1:]), fault["msg"]) for fault in error.errors()]
        words = "; ".join(f"{name}: {message}" if name else message for name, message in faults)
        return _response(InvalidInput(words[:500], param=faults[0][0] or None), request)

    async def _http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path[:128]
        if error.status_code == 405:
            return _response(MethodNotAllowed(f"{path} does not take {request.method}"), request)
        if error.status_code == 404:
            return _response(NotFound(f"there is nothing at {path}; see /docs"), request)
        return _response(InvalidInput(str(error.detail)), request)


def _who(scope: Scope, headers: dict[bytes, bytes]) -> str:
    """Whose ``Idempotency-Key`` it is."""
    key = (headers.get(b"x-api-key") or headers.get(b"authorization") or b"").decode("latin-1")
    return key or str((scope.get("client") or ("",))[0])


def _response(error: ApplianceError, request: Request) -> Response:
    request_id = request.scope["state"]["request_id"]
    headers = {k.decode(): v.decode("latin-1") for k, v in headers_of(error, request_id)}
    headers.pop("x-request-id")  # set for every answer
    return Response(body_of(error, request.url.path, request_id), error.status, headers)
