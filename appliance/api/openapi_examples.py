"""An answer of every route, for the documentation page. Shortened, but of the real form."""

from typing import Any

_STATS = {
    "model_stats": [
        {
            "name": "segment",
            "version": "1",
            "last_inference": 1795981571961,
            "inference_count": 12,
            "execution_count": 7,
            "inference_stats": {
                "success": {"count": 12, "ns": 96000000},
                "fail": {"count": 0, "ns": 0},
                "queue": {"count": 12, "ns": 15000000},
            },
            "batch_stats": [{"batch_size": 1, "compute_infer": {"count": 4, "ns": 24000000}}],
        }
    ]
}
_MODEL = {
    "name": "segment",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 256, 256, 3]}],
    "outputs": [{"name": "mask", "datatype": "FP32", "shape": [-1, 256, 256, 1]}],
    "parameters": {"task": "segment", "device": "cpu", "device_reason": None, "max_batch": 8},
}
_CONFIG = {
    "name": "segment",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 8,
    "input": [{"name": "image", "data_type": "TYPE_FP32", "dims": [256, 256, 3]}],
    "output": [{"name": "mask", "data_type": "TYPE_FP32", "dims": [256, 256, 1]}],
}
_STATUS = {
    "name": "inference-appliance",
    "state": "ready",
    "address": "http://127.0.0.1:11711",
    "device": {"policy": "auto", "running": "cpu", "reason": None},
    "engine": {"state": "ready", "pid": 4711, "restarts": 0, "deaths": []},
    "engines": [{"id": "auto", "state": "ready", "pid": 4711, "restarts": 0, "deaths": []}],
    "queue": {"waiting": 0, "running": 0, "paused": False},
    "models": [{"name": "segment", "ready": True, "task": "segment", "error": None}],
    "notes": [],
}
_REQUEST = {
    "id": "7f3a9c21-4d",
    "model": "segment",
    "version": "1",
    "state": "queued",
    "position": 3,
    "estimated_wait_ms": 42,
    "age_ms": 12.5,
    "run_ms": None,
    "error": None,
}
_EVENTS = 'event: model\ndata: {"name":"segment"}\n\nevent: status\ndata: {"state":"ready", …}\n\n'
_HISTORY = {
    "every_s": 5.0,
    "at": [1795981571.9, 1795981576.9],
    "waiting": [0, 2],
    "running": [0, 1],
    "requests_per_s": [0.0, 12.4],
    "p50_ms": [None, 7.9],
    "p99_ms": [None, 31.2],
    "errors": [0, 0],
    "memory": {"cpu": {"total": [8589934592] * 2, "ours": [314572800] * 2, "others": [2147483648] * 2}},
}
_ADDED = {
    "name": "mine",
    "served": True,
    "reason": None,
    "versions": [{"version": "1", "load_ms": 41.5, "notes": []}],
}
_DOCTOR = {
    "version": "0.1.0",
    "started": "2026-11-29T23:31:07+00:00",
    "seconds": 1.6,
    "passed": True,
    "checks": [{"check": "port", "verdict": "ok", "found": "11711 on 127.0.0.1 is free", "cure": ""}],
}
_METRICS = 'appliance_requests_total{code="ok",model="segment",version="1"} 12.0\n'

_LANGUAGE_MODEL = {
    "id": "smollm2",
    "object": "model",
    "created": 1795981571,
    "owned_by": "inference-appliance",
    "task": "generate",
    "ready": True,
    "context_length": 8192,
    "can": ["guidance", "seed"],
}

EXAMPLES: dict[str, Any] = {
    "/v1/models": {"object": "list", "data": [_LANGUAGE_MODEL]},
    "/v1/models/{model}": _LANGUAGE_MODEL,
    "/v2": {"name": "inference-appliance", "version": "0.1.0", "extensions": ["binary_tensor_data", "statistics"]},
    "/v2/health/live": {"live": True},
    "/v2/health/ready": {"ready": True},
    "/v2/models/stats": _STATS,
    "/v2/models/{model}": _MODEL,
    "/v2/models/{model}/versions/{version}": _MODEL,
    "/v2/models/{model}/ready": {"name": "segment", "ready": True},
    "/v2/models/{model}/versions/{version}/ready": {"name": "segment", "ready": True},
    "/v2/models/{model}/config": _CONFIG,
    "/v2/models/{model}/versions/{version}/config": _CONFIG,
    "/v2/models/{model}/stats": _STATS,
    "/v2/models/{model}/versions/{version}/stats": _STATS,
    "/v2/repository/index": [{"name": "segment", "version": "1", "state": "READY", "reason": ""}],
    "/v2/repository/models/{model}/load": {},
    "/v2/repository/models/{model}/unload": {},
    "/health": {"status": "ok"},
    "/ready": {"ready": True, "missing": {}},
    "/api/status": _STATUS,
    "/api/history": _HISTORY,
    "/api/doctor": _DOCTOR,
    "/api/models": _ADDED,
    "/api/models/{model}/pin": {"name": "segment", "pinned": True},
    "/api/models/{model}/unpin": {"name": "segment", "pinned": False},
    "/api/pause": {"paused": True},
    "/api/resume": {"paused": False},
    "/api/engine/restart": {"restarting": True},
    "/api/shutdown": {"stopping": True, "pid": 4700, "timeout_ms": 10000, "waiting": 2, "running": 1},
    "/api/session": {"key": "ia-…"},
    "/api/settings/reload": {"applied": ["queue_total"], "restart_needed": ["threads"], "faults": [], "keys": 1},
    "/api/requests/{request_id}": _REQUEST,
    "/api/events": _EVENTS,
    "/metrics": _METRICS,
}
"""Path → what a successful answer looks like; text for the routes that do not answer with JSON."""


def add_examples(paths: dict[str, Any]) -> None:
    """Write the examples into an OpenAPI document's ``paths``."""
    kinds = {"/api/events": "text/event-stream", "/metrics": "text/plain"}
    for path, example in EXAMPLES.items():
        for operation in paths.get(path, {}).values():
            answer = operation["responses"]["200"]
            answer["content"] = {kinds.get(path, "application/json"): {"schema": {}, "example": example}}
