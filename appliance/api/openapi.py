"""What FastAPI cannot document by itself: the hot routes, and a docs page that works without a network."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse

from appliance.api.openapi_examples import add_examples
from appliance.errors import NotFound

DESCRIPTION = """
Local inference. Answers carry `X-Request-ID`, `Server-Timing` (queue, infer, total in ms), `X-Queue-Position`
(place at admission, 0 = at once) and `X-Device` (what ran it). Requests may carry `X-Request-ID`, `X-Priority`
(the lower number first) and `X-Timeout-Ms`.

```
curl -F file=@cat.png http://127.0.0.1:11711/predict/classify
```
"""

_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}

_ERRORS = {
    "400": "invalid_input: malformed body, wrong name, datatype or shape",
    "404": "model_not_found: unknown, or not loaded",
    "413": "input_too_large: body, pixels, items or elements over the limit",
    "415": "unsupported_media: not something that can be read",
    "429": "queue_full, rate_limited: come back after Retry-After",
    "500": "model_error, invalid_output",
    "503": "queue_timeout, engine_restarting, warming_up, paused: come back after Retry-After",
    "504": "inference_timeout: the run took longer than its deadline",
    "507": "insufficient_memory: can never fit",
}

_INFER_EXAMPLE = {
    "inputs": [{"name": "image", "shape": [1, 2], "datatype": "FP32", "data": [0.1, 0.2]}],
    "outputs": [{"name": "logits"}],
}
_INFER_ANSWER = {
    "model_name": "classify",
    "model_version": "1",
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.25]}],
}
_PREDICT_ANSWER = {
    "model": "classify",
    "version": "1",
    "labels": [{"label": "Egyptian cat", "score": 0.77, "index": 285}],
}


def _parameter(name: str, where: str, text: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": {"type": kind}, "description": text}


_HEADERS = [
    _parameter("X-Request-ID", "header", "Echoed; made if absent."),
    _parameter("X-Priority", "header", "The lower number first; 100 if absent.", "integer"),
    _parameter("X-Timeout-Ms", "header", "Shortens the queue and run deadlines.", "integer"),
]


def _operation(
    tag: str, summary: str, path: list[str], body: dict[str, Any], answer: dict[str, Any]
) -> dict[str, Any]:
    return {
        "post": {
            "tags": [tag],
            "summary": summary,
            "parameters": [*(_parameter(p, "path", p) for p in path), *_HEADERS],
            "requestBody": {"required": True, "content": body},
            "responses": {
                "200": {"description": "The answer", "content": answer},
                **{code: {"description": text} for code, text in _ERRORS.items()},
            },
        }
    }


def with_hot_routes(document: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's OpenAPI document plus the inference routes and an example of every answer."""
    add_examples(document["paths"])
    binary = {"schema": {"type": "string", "format": "binary"}}
    infer_body = {
        "application/json": {"schema": {"type": "object"}, "example": _INFER_EXAMPLE},
        "application/octet-stream": binary,
    }
    infer_answer = {
        "application/json": {"schema": {"type": "object"}, "example": _INFER_ANSWER},
        "application/octet-stream": binary,
    }
    form = {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary", "description": "One file, or the part several times."},
            "text": {"type": "string"},
        },
    }
    predict_body = {
        "multipart/form-data": {"schema": form},
        "image/*": binary,
        "application/json": {"schema": {"type": "object"}, "example": {"image": "data:image/png;base64,…"}},
    }
    predict_answer = {
        "application/json": {"schema": {"type": "object"}, "example": _PREDICT_ANSWER},
        "image/png": binary,
        "image/jpeg": binary,
    }
    oip, tag = "Open Inference Protocol v2", "Tasks"
    one = _operation(oip, "Run a model on tensors (JSON or binary)", ["model"], infer_body, infer_answer)
    version = _operation(oip, "Run one version of a model", ["model", "version"], infer_body, infer_answer)
    task = _operation(tag, "A file in; labels, boxes, text or an image out", ["model"], predict_body, predict_answer)
    document["paths"] = {
        "/predict/{model}": task,
        "/v2/models/{model}/infer": one,
        "/v2/models/{model}/versions/{version}/infer": version,
        **document["paths"],
    }
    return document


def docs_router() -> APIRouter:
    """``/docs``, with Swagger UI from the installed package instead of a network."""
    routes = APIRouter(include_in_schema=False)
    package = find_spec("fastapi_offline")
    folder = Path(package.origin).parent / "static" if package and package.origin else None

    @routes.get("/docs")
    async def docs() -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Inference Appliance",
            swagger_js_url="/docs/swagger-ui-bundle.js",
            swagger_css_url="/docs/swagger-ui.css",
            swagger_favicon_url="/docs/favicon.png",
        )

    @routes.get("/docs/{name}")
    async def file(name: str) -> Response:
        media_type = _FILES.get(name)
        if media_type is None or folder is None:
            raise NotFound(f"there is nothing at /docs/{name[:64]}")
        headers = {"cache-control": "max-age=86400"}
        return FileResponse(folder / name, media_type=media_type, headers=headers)

    return routes
