"""What the usual tutorial builds: FastAPI, a sync route (so FastAPI's thread pool), one ONNX Runtime session.

``python -m tests.bench.twin MODEL PORT THREADS INPUT SHAPE`` (shape: 1,784)
"""

import sys
from typing import Annotated

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import Depends, FastAPI, Request, Response


def application(model: str, threads: int, name: str, shape: list[int]) -> FastAPI:
    """``POST /infer``: raw FP32 values in, raw values of the first output out."""
    options = ort.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    app = FastAPI()

    async def raw(request: Request) -> bytes:
        return await request.body()

    @app.post("/infer")
    def infer(body: Annotated[bytes, Depends(raw)]) -> Response:
        x = np.frombuffer(body, dtype=np.float32).reshape(shape)
        return Response(session.run(None, {name: x})[0].tobytes(), media_type="application/octet-stream")

    return app


if __name__ == "__main__":
    model, port, threads, name, shape = sys.argv[1:]
    sizes = [int(d) for d in shape.split(",")]
    uvicorn.run(application(model, int(threads), name, sizes), port=int(port), log_level="error", access_log=False)
