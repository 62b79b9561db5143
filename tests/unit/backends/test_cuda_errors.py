"""Which texts mean that only a new process helps. Those of ONNX Runtime are as it writes them."""

import pytest

from appliance.backends import cuda_errors, onnx_errors
from appliance.backends.base import DeviceLost
from appliance.errors import InsufficientMemory, ModelError

AT = " ; GPU=0 ; hostname=box ; file=core/cuda/gpu_data_transfer.cc ; line=73 ; expr=cudaMemcpy();"
NODE = "Non-zero status code returned while running Gemm node. Name:'Gemm_5' Status Message: "
LOST = [
    f"CUDA failure 719: unspecified launch failure{AT}",
    f"{NODE}CUDA failure 700: an illegal memory access was encountered{AT}",
    f"CUDA failure 999: unknown error{AT}",
    f"CUDA failure 710: device-side assert triggered{AT}",
    f"CUDA failure 100: no CUDA-capable device is detected{AT}",
    f"CUDA failure 46: all CUDA-capable devices are busy or unavailable{AT}",
    f"CUDA failure 214: uncorrectable ECC error encountered{AT}",
    f"{NODE}CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED{AT}",
    f"{NODE}CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED{AT}",
    f"{NODE}CUDNN_FE failure 4000: CUDNN_BACKEND_API_FAILED; CUDNN_STATUS_INTERNAL_ERROR",
    "CUDA error: device-side assert triggered",
    "CUDA error cudaErrorIllegalAddress:an illegal memory access was encountered",
    "cudaErrorLaunchFailure: unspecified launch failure",
    "CUDA error: misaligned address",
]
OTHERS = [
    f"CUDA failure 1: invalid argument{AT}",
    f"CUDA failure 9: invalid configuration argument{AT}",
    f"CUDA failure 98: invalid device function{AT}",
    f"CUDA failure 209: no kernel image is available for execution on the device{AT}",
    f"{NODE}CUDNN failure 3000: CUDNN_STATUS_NOT_SUPPORTED{AT}",
    f"{NODE}CUBLAS failure 7: CUBLAS_STATUS_INVALID_VALUE{AT}",
    f"{NODE}Input dimension 719 does not fit 999",
    "Got invalid dimensions for input: x for the following indices index: 0 Got: 700 Expected: 4",
]
MEMORY = [
    f"CUDA failure 2: out of memory{AT}",
    "Failed to allocate memory for requested buffer of size 719",
]


@pytest.mark.parametrize("text", LOST)
def test_lost(text: str) -> None:
    assert cuda_errors.is_lost(text)
    error = onnx_errors.run_error(RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {text}"), False)
    assert isinstance(error, DeviceLost)
    assert "hostname" not in str(error) and "gpu_data_transfer" not in str(error)


@pytest.mark.parametrize("text", LOST)
def test_a_run_that_nobody_wants_any_more_tells_it_too(text: str) -> None:
    assert isinstance(onnx_errors.run_error(RuntimeError(text), True), DeviceLost)


@pytest.mark.parametrize("text", OTHERS)
def test_another_fault(text: str) -> None:
    assert not cuda_errors.is_lost(text)
    assert isinstance(onnx_errors.run_error(RuntimeError(text), False), ModelError)


@pytest.mark.parametrize("text", MEMORY)
def test_too_little_memory_is_no_loss(text: str) -> None:
    assert isinstance(onnx_errors.run_error(RuntimeError(text), False), InsufficientMemory)


def test_the_runtime_s_own_type() -> None:
    kind = type("DeviceReset", (Exception,), {})
    assert isinstance(onnx_errors.run_error(kind("the device was reset"), False), DeviceLost)
