"""The protocol's other routes: health, metadata, configuration, statistics, repository control."""

from collections.abc import Collection
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from appliance import __version__
from appliance.api.body import Body
from appliance.api.context import Context
from appliance.errors import InvalidInput, NotFound
from appliance.gate.stats import Duration, ModelStats
from appliance.models.spec import ModelSpec, TensorSpec
from appliance.serving.served import ServedModel, ServedVersion

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)

_NOT_OFFERED = {
    "systemsharedmemory": "system_shared_memory",
    "cudasharedmemory": "cuda_shared_memory",
    "trace": "trace",
    "logging": "logging",
}
_CONTROL_BYTES = 64 * 1024

_TRITON_TYPES = {"BYTES": "TYPE_STRING"}


def json(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def server_metadata() -> dict[str, Any]:
    """``GET /v2``."""
    return {"name": "inference-appliance", "version": __version__, "extensions": list(EXTENSIONS)}


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def model_metadata(model: ServedModel, version: ServedVersion) -> dict[str, Any]:
    """``GET /v2/models/{m}``: the protocol's fields, and what really runs the model."""
    spec = version.spec
    about: dict[str, Any] = {
        "name": model.name,
        "versions": [number for number, v in model.versions.items() if v.ready],
        "platform": spec.platform if spec else "pipeline",
        "inputs": [_tensor(t) for t in spec.inputs] if spec else [],
        "outputs": [_tensor(t) for t in spec.outputs] if spec else [],
        "parameters": {
            "task": model.pipeline.task if model.pipeline else None,
            "parts": list(model.pipeline.parts) if model.pipeline else [],
            "description": model.folder.config.description,
            "device": spec.device if spec else None,
            "device_reason": spec.degraded if spec else None,
            "providers": list(spec.providers) if spec else [],
            "cpu_nodes": spec.cpu_nodes if spec else 0,
            "max_batch": spec.max_batch if spec else 0,
            "good_batch": spec.good_batch if spec else 0,
            "notes": [*(spec.notes if spec else ()), *model.folder.notes],
        },
    }
    return about


def _version_policy(versions: str | list[int]) -> dict[str, Any]:
    if isinstance(versions, list):
        return {"specific": {"versions": versions}}
    return {"all": {}} if versions == "all" else {"latest": {"num_versions": 1}}


def model_config(spec: ModelSpec, devices: Collection[str]) -> dict[str, Any]:
    """``GET …/config`` in the words of Triton's model configuration. A batch axis is left out of ``dims``.

    ``devices``: each has a copy."""
    skip = 1 if spec.max_batch else 0

    def tensor(t: TensorSpec) -> dict[str, Any]:
        kind = _TRITON_TYPES.get(t.datatype, f"TYPE_{t.datatype}")
        return {"name": t.name, "data_type": kind, "dims": list(t.shape[skip:])}

    groups: list[dict[str, Any]] = []
    for at, device in enumerate(devices):
        gpu = device.startswith("cuda")
        group = {"name": f"{spec.name}_{at}", "kind": "KIND_GPU" if gpu else "KIND_CPU", "count": spec.lanes}
        groups.append({**group, "gpus": [int(device.partition(":")[2] or 0)] if gpu else []})
    config: dict[str, Any] = {
        "name": spec.name,
        "platform": spec.platform,
        "backend": "onnxruntime" if spec.backend == "onnx" else spec.backend,
        "max_batch_size": spec.max_batch,
        "input": [tensor(t) for t in spec.inputs],
        "output": [tensor(t) for t in spec.outputs],
        "instance_group": groups,
        "version_policy": _version_policy(spec.config.versions),
    }
    if spec.max_batch:
        wish = spec.config.batching
        config["dynamic_batching"] = {
            "preferred_batch_size": list(wish.preferred_sizes),
            "max_queue_delay_microseconds": round(wish.max_delay_ms * 1000),
        }
    return config


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def model_stats(name: str, version: str, stats: ModelStats) -> dict[str, Any]:
    """One entry of ``…/stats``."""
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    inference = {part: _duration(getattr(stats, part)) for part in parts}
    inference |= {"cache_hit": _duration(Duration()), "cache_miss": _duration(Duration())}
    return {
        "name": name,
        "version": version,
        "last_inference": stats.last_inference_ms,
        "inference_count": stats.inference_count,
        "execution_count": stats.execution_count,
        "inference_stats": inference,
        "batch_stats": [
            {"batch_size": b.batch_size, "compute_infer": _duration(b.compute_infer)} for b in stats.batch_stats()
        ],
    }


def _why_idle(model: ServedModel, version: ServedVersion) -> str:
    if version.asleep:
        return "not loaded; a request loads it"
    return "" if version.ready or model.wanted else "not loaded"


def repository_index(models: list[ServedModel]) -> list[dict[str, str]]:
    """``POST /v2/repository/index``: one entry a version; the reason says what is wrong, in words."""
    entries = []
    for model in sorted(models, key=lambda m: m.name):
        if not model.versions:
            reason = model.error or "not loaded"
            entries.append({"name": model.name, "version": "", "state": "UNAVAILABLE", "reason": reason})
        for number, version in model.versions.items():
            idle = _why_idle(model, version)
            entries.append(
                {
                    "name": model.name,
                    "version": number,
                    "state": version.state,
                    "reason": version.error or model.folder.error or idle,
                }
            )
    return entries


def router(context: Context) -> APIRouter:
    """The routes; the infer routes are added by hand (they are plain ASGI)."""
    catalog = context.catalog
    routes = APIRouter(tags=["Open Inference Protocol v2"])
    one = "/v2/models/{model}"

    def spec_of(model: str, version: str | None) -> ModelSpec:
        spec = catalog.version(model, version).spec
        if spec is None:
            raise InvalidInput(f"model '{model}' is a pipeline made of other models; it has no configuration")
        return spec

    @routes.get("/v2", summary="Server metadata")
    async def metadata() -> Response:
        return json(server_metadata())

    @routes.get("/v2/health/live", summary="The server answers")
    async def live() -> Response:
        return json({"live": True})

    @routes.get("/v2/health/ready", summary="Every model that must be loaded is warm")
    async def ready() -> Response:
        is_ready = catalog.ready() and not context.gate.draining
        return json({"ready": is_ready}, 200 if is_ready else 503)

    @routes.get("/v2/models/stats", summary="Statistics of all models")
    async def all_stats() -> Response:
        return json({"model_stats": [model_stats(q.model, q.version, q.stats) for q in context.gate.queues.values()]})

    @routes.get(one, summary="Model metadata: tensors, and what runs it")
    @routes.get(one + "/versions/{version}", summary="Metadata of one version")
    async def about(model: str, version: str | None = None) -> Response:
        return json(model_metadata(catalog.model(model), catalog.version(model, version)))

    @routes.get(one + "/ready", summary="The model is warm")
    @routes.get(one + "/versions/{version}/ready", summary="The version is warm")
    async def model_ready(model: str, version: str | None = None) -> Response:
        found = catalog.model_ready(model, version)
        return json({"name": model, "ready": found}, 200 if found else 503)

    @routes.get(one + "/config", summary="Model configuration, in Triton's words")
    @routes.get(one + "/versions/{version}/config", summary="Configuration of one version")
    async def config(model: str, version: str | None = None) -> Response:
        spec = spec_of(model, version)
        copies = context.catalog.version(model, version).copies.values()
        return json(model_config(spec, [c.spec.device for c in copies if c.spec] or [spec.device]))

    @routes.get(one + "/stats", summary="Statistics of a model")
    @routes.get(one + "/versions/{version}/stats", summary="Statistics of one version")
    async def stats(model: str, version: str | None = None) -> Response:
        catalog.version(model, version)
        chosen = [
            model_stats(queue.model, queue.version, queue.stats)
            for queue in context.gate.queues.values()
            if model == queue.model and version in (None, queue.version)
        ]
        return json({"model_stats": chosen})

    @routes.post("/v2/repository/index", summary="All models and their state")
    async def index(request: Request) -> Response:
        body = await control(request)
        entries = repository_index(list(catalog.models.values()))
        if body.get("ready"):
            entries = [entry for entry in entries if entry["state"] == "READY"]
        return json(entries)

    @routes.post("/v2/repository/models/{model}/load", summary="Load what lies in the model's folder now")
    async def load(model: str, request: Request) -> Response:
        parameters = await control_parameters(request)
        if parameters:
            names = ", ".join(str(name)[:64] for name in list(parameters)[:8])
            raise InvalidInput(f"load parameters are not offered ({names}); put a model.toml in the model's folder")
        await catalog.load(model)
        return json({})

    @routes.post("/v2/repository/models/{model}/unload", summary="Let a model go; its running requests end first")
    async def unload(model: str, request: Request) -> Response:
        parameters = await control_parameters(request)
        if parameters.get("unload_dependents"):
            raise InvalidInput("unload_dependents is not offered", param="unload_dependents")
        await catalog.unload(model)
        return json({})

    async def not_offered(request: Request) -> Response:
        found = next(name for part, name in _NOT_OFFERED.items() if part in request.url.path.split("/"))
        raise NotFound(f"the extension '{found}' is not offered by this server (see GET /v2)")

    for part in _NOT_OFFERED:
        for path in (f"/v2/{part}", f"/v2/{part}/{{rest:path}}", f"{one}/{part}/setting"):
            routes.add_api_route(path, not_offered, methods=["GET", "POST"], include_in_schema=False)

    async def control(request: Request) -> dict[str, Any]:
        """The body of a control call: empty or a small JSON object. Raises InvalidInput and what Body raises."""
        headers, wait_s = dict(request.scope["headers"]), context.settings.body_timeout_ms / 1000
        async with Body(headers, request.receive, context.bodies, _CONTROL_BYTES, wait_s) as raw:
            if not raw.strip():
                return {}
            try:
                return msgspec.json.decode(raw, type=dict[str, Any])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidInput(f"the body is not a JSON object: {error}", param="body") from None

    async def control_parameters(request: Request) -> dict[str, Any]:
        parameters = (await control(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise InvalidInput("'parameters' must be a JSON object", param="parameters")
        return parameters

    return routes
