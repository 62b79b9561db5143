"""What runs a model: one small protocol, one module per runtime. Only these import onnxruntime or torch."""

from appliance.backends.base import Backend
from appliance.errors import ModelLoadError

NAMES = ("onnx", "fake")


def get(name: str) -> Backend:
    """The backend of this name, with its runtime imported. Raises ModelLoadError: unknown, or not installed."""
    if name == "fake":
        from appliance.backends.fake import FakeBackend

        return FakeBackend()
    if name == "onnx":
        try:
            from appliance.backends.onnx import OnnxBackend

            return OnnxBackend()
        except ImportError as error:
            raise ModelLoadError(
                "ONNX Runtime is not installed: install the extra 'cpu' (pip install \"inference-appliance[cpu]\") "
                "or, for an NVIDIA card, 'cuda' (pip install \"inference-appliance[cuda]\"); never both "
                f"({error})"
            ) from None
    raise ModelLoadError(f"backend '{name}' is not known (known: {', '.join(NAMES)})")
