"""Every failure the appliance can tell a caller about, as one tree of types.

::

    ApplianceError
    ├── InvalidInput            400 invalid_input
    │   ├── UnsupportedParameter 400 unsupported_parameter
    │   └── ContextLengthExceeded 400 context_length_exceeded
    ├── Unauthorized            401 unauthorized
    ├── Forbidden               403 forbidden
    ├── NotFound                404 not_found
    │   └── ModelNotFound       404 model_not_found
    ├── MethodNotAllowed        405 method_not_allowed
    ├── NotAcceptable           406 not_acceptable
    ├── IdempotencyConflict     409 idempotency_conflict
    ├── InputTooLarge           413 input_too_large
    ├── UnsupportedMedia        415 unsupported_media
    ├── HeadTooLarge            431 head_too_large
    ├── TryLater                (retryable, carries a Retry-After)
    │   ├── QueueFull           429 queue_full
    │   ├── RateLimited         429 rate_limited
    │   ├── QueueTimeout        503 queue_timeout
    │   ├── EngineRestarting    503 engine_restarting
    │   ├── WarmingUp           503 warming_up
    │   ├── Paused              503 paused
    │   └── Overloaded          503 overloaded
    ├── InferenceTimeout        504 inference_timeout
    ├── InsufficientMemory      507 insufficient_memory
    ├── ModelError              500 model_error
    │   ├── ModelLoadError      500 model_error   (the file is at fault)
    │   └── InvalidOutput       500 invalid_output
    ├── InternalError           500 internal_error
    │   └── PackError           500 internal_error (a runtime pack is at fault; only the commands meet it)
    └── Cancelled               499 cancelled     (nobody waits for the answer any more)

The one place that turns these into HTTP is ``appliance/api/errors.py``.
"""

from typing import ClassVar


class ApplianceError(Exception):
    """Base of the tree.

    ``message`` is for people: it names the field and the limit, never a local path or a stack trace.
    ``param`` is the field at fault, when one is.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidInput(ApplianceError):
    """The request itself is wrong: malformed body, wrong name, datatype or shape."""

    code = "invalid_input"
    status = 400


class UnsupportedParameter(InvalidInput):
    """A parameter, or a value of it, that this appliance or this model cannot honour."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidInput):
    """Prompt and answer together are longer than the language model's context."""

    code = "context_length_exceeded"


class Unauthorized(ApplianceError):
    """A key is required and none, or a wrong one, was given."""

    code = "unauthorized"
    status = 401


class Forbidden(ApplianceError):
    """The caller may not use this service (Host or Origin)."""

    code = "forbidden"
    status = 403


class NotFound(ApplianceError):
    """No such path or thing."""

    code = "not_found"
    status = 404


class ModelNotFound(NotFound):
    """Unknown model or version, or one that is not loaded."""

    code = "model_not_found"


class MethodNotAllowed(ApplianceError):
    """The path exists, but not for this HTTP method."""

    code = "method_not_allowed"
    status = 405


class NotAcceptable(ApplianceError):
    """The form of answer asked for with ``Accept`` is not one this pipeline makes."""

    code = "not_acceptable"
    status = 406


class IdempotencyConflict(ApplianceError):
    """An ``Idempotency-Key`` was used again for something else."""

    code = "idempotency_conflict"
    status = 409


class InputTooLarge(ApplianceError):
    """Body, pixels, items, elements or text over the limit."""

    code = "input_too_large"
    status = 413


class UnsupportedMedia(ApplianceError):
    """The bytes are not an image (or other medium) that can be read."""

    code = "unsupported_media"
    status = 415


class HeadTooLarge(ApplianceError):
    """The request line and headers together are over the limit."""

    code = "head_too_large"
    status = 431


class TryLater(ApplianceError):
    """Refused for now; the same request may succeed after ``retry_after_s`` seconds."""

    status = 503
    retryable = True

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class QueueFull(TryLater):
    """The model's queue, or the queue in total, holds as many requests as it may."""

    code = "queue_full"
    status = 429


class RateLimited(TryLater):
    """More requests in a time than this client may send, or this model takes."""

    code = "rate_limited"
    status = 429


class QueueTimeout(TryLater):
    """Waited past the queue deadline."""

    code = "queue_timeout"


class EngineRestarting(TryLater):
    """The engine process is being started again and was not back in time."""

    code = "engine_restarting"


class WarmingUp(TryLater):
    """The model is being loaded or warmed up."""

    code = "warming_up"


class Paused(TryLater):
    """The appliance is paused or shutting down."""

    code = "paused"


class Overloaded(TryLater):
    """So many bytes of request bodies are held that no more are read."""

    code = "overloaded"


class InferenceTimeout(ApplianceError):
    """The run took longer than its deadline."""

    code = "inference_timeout"
    status = 504


class InsufficientMemory(ApplianceError):
    """Can never fit this device's memory budget."""

    code = "insufficient_memory"
    status = 507


class ModelError(ApplianceError):
    """The model failed while running."""

    code = "model_error"


class ModelLoadError(ModelError):
    """The model cannot be loaded; the message says why in words."""


class InvalidOutput(ModelError):
    """The model's answer cannot be given as a right one (not finite, or not representable as asked)."""

    code = "invalid_output"


class InternalError(ApplianceError):
    """A fault of the appliance itself; details are in the log under the request's id."""


class PackError(InternalError):
    """A runtime pack cannot be had, unpacked, found or removed; the message says why in words."""


class Cancelled(ApplianceError):
    """The caller went away before the answer."""

    code = "cancelled"
    status = 499


def _tree(root: type[ApplianceError]) -> dict[str, type[ApplianceError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found = _tree(child) | found
    return found


def codes() -> list[str]:
    """All codes, sorted."""
    return sorted(_tree(ApplianceError))


def by_code(code: str, message: str) -> ApplianceError:
    """The error of the tree with this ``code``; ``InternalError`` for a code that is not in it."""
    return _tree(ApplianceError).get(code, InternalError)(message)
