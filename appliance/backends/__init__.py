"""What runs a model: one small protocol, one module per runtime. Only these import onnxruntime or torch."""

import os
from pathlib import Path

from appliance.backends.base import Backend
from appliance.errors import ModelLoadError
from appliance.system import dlls

NAMES = ("onnx", "fake")


def get(name: str, packs: Path | None = None) -> Backend:
    """The backend of this name, with its runtime imported, and before that with the search for its libraries set up.

    ``packs``: where runtime packs are installed. Raises ModelLoadError: unknown, or not installed.
    """
    if name == "fake":
        from appliance.backends.fake import FakeBackend

        return FakeBackend()
    if name == "onnx":
        # Since 1.29 ONNX Runtime's own builds tell Microsoft of sessions and models, on Linux too. It looks when
        # it is imported.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        libraries = dlls.prepare("onnx", packs, dlls.onnxruntime_version())
        try:
            from appliance.backends.onnx import OnnxBackend

            return OnnxBackend(libraries)
        except ImportError as error:
            raise ModelLoadError(
                "ONNX Runtime is not installed: install the extra 'cpu' (pip install \"inference-appliance[cpu]\") "
                "or, for an NVIDIA card, 'cuda' (pip install \"inference-appliance[cuda]\"); never both "
                f"({error})"
            ) from None
    raise ModelLoadError(f"backend '{name}' is not known (known: {', '.join(NAMES)})")
