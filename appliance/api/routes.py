"""Which paths are inference, and of which model."""

from typing import Literal, NamedTuple

BY_BODY = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"})
"""Whose body names the model."""

Kind = Literal["infer", "predict", "generate", "generate_stream", "body"]
_RUNS: dict[str, Kind] = {"infer": "infer", "generate": "generate", "generate_stream": "generate_stream"}


class Route(NamedTuple):
    """``model``: "" where the body names it."""

    model: str
    version: str | None
    kind: Kind


def hot_route(path: str) -> Route | None:
    """None for everything that FastAPI's router knows better."""
    if path in BY_BODY:
        return Route("", None, "body")
    parts = path.split("/")
    if path.startswith("/predict/") and len(parts) == 3:
        return Route(parts[2], None, "predict")
    kind = _RUNS.get(parts[-1])
    if kind is None or not path.startswith("/v2/models/"):
        return None
    if len(parts) == 5:
        return Route(parts[3], None, kind)
    if len(parts) == 7 and parts[4] == "versions":
        return Route(parts[3], parts[5], kind)
    return None
