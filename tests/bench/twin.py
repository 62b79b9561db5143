"""What the usual tutorial builds: FastAPI, a sync route (so FastAPI's thread pool), one ONNX Runtime session.

``python -m tests.bench.twin MODEL PORT THREADS INPUTS`` (inputs: ``{"x": ["float32", [1, 784]]}``)
"""

import json
import math
import sys
from typing import Annotated

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import Depends, FastAPI, Request, Response


def application(model: str, threads: int, inputs: dict[str, tuple[str, list[int]]]) -> FastAPI:
    """``POST /infer``: raw values in, one input behind the other; raw values of the first output out."""
    options = ort.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    app = FastAPI()
    cuts, at = [], 0
    for name, (dtype, shape) in inputs.items():
        cuts.append((name, np.dtype(dtype), shape, at))
        at += np.dtype(dtype).itemsize * math.prod(shape)

    async def raw(request: Request) -> bytes:
        return await request.body()

    @app.post("/infer")
    def infer(body: Annotated[bytes, Depends(raw)]) -> Response:
        given = {
            name: np.frombuffer(body, dtype, math.prod(shape), start).reshape(shape)
            for name, dtype, shape, start in cuts
        }
        return Response(session.run(None, given)[0].tobytes(), media_type="application/octet-stream")

    return app


if __name__ == "__main__":
    model, port, threads, inputs = sys.argv[1:]
    made = application(model, int(threads), json.loads(inputs))
    uvicorn.run(made, port=int(port), log_level="error", access_log=False)
