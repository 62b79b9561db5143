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


_CHAT_EXAMPLE = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 32,
    "temperature": 0,
}
_CHAT_ANSWER = {
    "id": "chatcmpl-7f3a9c21-4d",
    "object": "chat.completion",
    "created": 1795981571,
    "model": "smollm2",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "The capital of France is Paris.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 37, "completion_tokens": 7, "total_tokens": 44},
}
_COMPLETION_ANSWER = {
    "id": "cmpl-7f3a9c21-4e",
    "object": "text_completion",
    "created": 1795981571,
    "model": "smollm2",
    "choices": [{"text": " Paris.", "index": 0, "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}
_EMBEDDING_ANSWER = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.01402724627405405, -0.011173074133694172]}],
    "model": "minilm",
    "usage": {"prompt_tokens": 15, "total_tokens": 15},
}
_RERANK_EXAMPLE = {
    "model": "reranker",
    "query": "capital of France",
    "documents": ["Paris is the capital of France.", "Berlin is large."],
    "top_n": 1,
    "return_documents": True,
}
_RERANK_ANSWER = {
    "object": "list",
    "model": "reranker",
    "results": [{"index": 0, "relevance_score": 0.998112, "document": {"text": "Paris is the capital of France."}}],
    "usage": {"prompt_tokens": 27, "total_tokens": 27},
}
_GENERATE_EXAMPLE = {"text_input": "The capital of France is", "parameters": {"max_tokens": 8, "temperature": 0}}
_GENERATE_ANSWER = {"model_name": "smollm2", "model_version": "1", "text_output": " Paris."}

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
        **_language(),
        "/v2/models/{model}/infer": one,
        "/v2/models/{model}/versions/{version}/infer": version,
        **document["paths"],
    }
    return document


def _language() -> dict[str, Any]:
    """The routes of language models."""

    def streamed(example: dict[str, Any]) -> dict[str, Any]:
        return {
            "application/json": {"schema": {"type": "object"}, "example": example},
            "text/event-stream": {"schema": {"type": "string"}, "example": "data: {…}\n\n"},
        }

    def one(example: dict[str, Any]) -> dict[str, Any]:
        return {"application/json": {"schema": {"type": "object"}, "example": example}}

    openai, oip = "OpenAI", "Open Inference Protocol v2"
    texts = {"model": "minilm", "input": ["How do I change my password?", "The volcano erupted."]}
    completion = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    found = {
        "/v1/chat/completions": _operation(
            openai, "A conversation goes on", [], one(_CHAT_EXAMPLE), streamed(_CHAT_ANSWER)
        ),
        "/v1/completions": _operation(openai, "A text goes on", [], one(completion), streamed(_COMPLETION_ANSWER)),
        "/v1/embeddings": _operation(openai, "Texts in, vectors out", [], one(texts), one(_EMBEDDING_ANSWER)),
        "/v1/rerank": _operation(
            openai, "The best of documents for a question", [], one(_RERANK_EXAMPLE), one(_RERANK_ANSWER)
        ),
    }
    for names in (["model"], ["model", "version"]):
        path = "/v2/models/{model}" + ("/versions/{version}" if len(names) > 1 else "")
        body, events = one(_GENERATE_EXAMPLE), {"text/event-stream": streamed(_GENERATE_ANSWER)["text/event-stream"]}
        found[f"{path}/generate"] = _operation(oip, "A text goes on", names, body, one(_GENERATE_ANSWER))
        found[f"{path}/generate_stream"] = _operation(oip, "A text goes on, in events", names, body, events)
    return found


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
