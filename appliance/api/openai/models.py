"""``GET /v1/models``: the models that OpenAI's routes can be asked for."""

from typing import Any

from fastapi import APIRouter

from appliance.api.context import Context
from appliance.errors import ModelNotFound
from appliance.models import genai_config
from appliance.serving.served import ServedModel

TASKS = ("generate", "embed", "rerank")


def router(context: Context) -> APIRouter:
    """Both routes."""
    routes = APIRouter(tags=["OpenAI"])

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Models for chats, completions, embeddings and reranking."""
        known = [model for _, model in sorted(context.catalog.models.items()) if _task(model) in TASKS]
        return {"object": "list", "data": [_about(context, model) for model in known]}

    @routes.get("/v1/models/{model}")
    async def model(model: str) -> dict[str, Any]:
        """One of them."""
        found = context.catalog.model(model)
        if _task(found) not in TASKS:
            raise ModelNotFound(f"model '{model}' is none of /v1; see GET /v2/models/{model}", param="model")
        return _about(context, found)

    return routes


def _task(model: ServedModel) -> str | None:
    if model.pipeline is not None:
        return model.pipeline.task
    config = model.folder.config  # of one that was never loaded only this is known
    return config.pipeline.get("task") or ("generate" if config.backend == genai_config.BACKEND else None)


def _about(context: Context, model: ServedModel) -> dict[str, Any]:
    """OpenAI's fields, and what a client would otherwise have to try. ``created``: since when it is known here."""
    newest = model.newest_ready()
    spoken = newest.spec.generation if newest is not None and newest.spec is not None else None
    return {
        "id": model.name,
        "object": "model",
        "created": int(context.started),
        "owned_by": "inference-appliance",
        "task": _task(model),
        "ready": newest is not None,
        "context_length": spoken.context if spoken is not None else None,
        "can": list(spoken.can) if spoken is not None else [],
    }
