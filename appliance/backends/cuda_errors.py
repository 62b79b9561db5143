"""Which failures of CUDA only a new process cures.

ONNX Runtime has no type for them: it raises the same exception for a wrong shape and for a GPU that fell off the bus,
and only the text has CUDA's own name or number. PyTorch has one that carries the number, but not through TorchScript
and not for what CUDA's libraries say. So the text is read. What is missed costs an
error answer for each request until the canary finds it; what is wrongly taken for one costs a restart.
"""

import re

# cuda_runtime_api.h: after these the context is unusable, or there is no device behind it any more.
_CODES = frozenset(
    {
        4,  # the driver is shutting down
        46,  # devices unavailable
        100,  # no device
        201,  # invalid context
        214,  # uncorrectable ECC error
        219,  # NVLink error
        226,  # contained memory error
        700,  # illegal memory access
        702,  # a kernel took too long for the display's watchdog
        709,  # the context is destroyed
        710,  # device-side assert
        714,  # hardware stack error
        715,  # illegal instruction
        716,  # misaligned address
        717,  # invalid address space
        718,  # invalid program counter
        719,  # unspecified launch failure
        802,  # the system is not ready
        803,  # the driver was replaced
        999,  # unknown error
    }
)
_NAMES = (
    "cudaErrorCudartUnloading",
    "cudaErrorDevicesUnavailable",
    "cudaErrorNoDevice",
    "cudaErrorDeviceUninitialized",
    "cudaErrorECCUncorrectable",
    "cudaErrorNvlinkUncorrectable",
    "cudaErrorContained",
    "cudaErrorIllegalAddress",
    "cudaErrorLaunchTimeout",
    "cudaErrorContextIsDestroyed",
    "cudaErrorAssert",
    "cudaErrorHardwareStackError",
    "cudaErrorIllegalInstruction",
    "cudaErrorMisalignedAddress",
    "cudaErrorInvalidAddressSpace",
    "cudaErrorInvalidPc",
    "cudaErrorLaunchFailure",
    "cudaErrorSystemNotReady",
    "cudaErrorSystemDriverMismatch",
    "cudaErrorUnknown",
)
_WORDS = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "illegal instruction was encountered",
    "misaligned address",
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "hardware stack error",
    "the launch timed out and was terminated",
    "no cuda-capable device is detected",
    "all cuda-capable devices are busy or unavailable",
    "context is destroyed",
    "driver shutting down",
)
# The libraries say only that what they started did not end well; NOT_SUPPORTED, BAD_PARAM, ALLOC_FAILED are others.
_LIBRARY = re.compile(r"\bCU(?:DNN|BLAS|SOLVER|FFT)_(?:STATUS_)?(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)")
_NUMBER = re.compile(r"\bCUDA (?:failure|error)(?: |: |\()(\d+)\b", re.IGNORECASE)
_NAMED = re.compile(rf"\b(?:{'|'.join(_NAMES)})\b")


def is_lost_code(code: int) -> bool:
    """The same for CUDA's own number of an error, where the runtime gives it."""
    return code in _CODES


def is_lost(text: str) -> bool:
    """True if after a failure with this text every later run on the device fails too, until the process ends."""
    lowered = text.lower()
    return (
        any(int(number) in _CODES for number in _NUMBER.findall(text))
        or _NAMED.search(text) is not None
        or any(words in lowered for words in _WORDS)
        or _LIBRARY.search(text) is not None
    )


def shortened(text: str) -> str:
    """Without the host's name and the line of code that ONNX Runtime adds."""
    return re.sub(r" ; GPU=.*", "", text)
