"""ONNX Runtime GenAI behind the backend protocol: language models in the library's own format of folders.

One decode thread (``genai_loop``) owns the library. Most models have a ``Generator`` for each stream
(``genai_turns``); those that were made for the library's own batching (``engine.dynamic_batching``) share its
``Engine`` (``genai_engine``).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import onnxruntime_genai as og

from appliance.backends import genai_device, onnx_device, onnx_errors
from appliance.backends.base import Cancellation, LoadRequest, Opened
from appliance.backends.genai_engine import CAN, EngineTurns
from appliance.backends.genai_loop import DecodeLoop
from appliance.backends.genai_stream import Handle, Stream, read
from appliance.backends.genai_turns import VoiceTurns
from appliance.backends.genai_voice import Voice, guidance_error
from appliance.errors import Cancelled, ModelError, ModelLoadError
from appliance.models import genai_config
from appliance.models.genai_config import GenaiFacts
from appliance.models.spec import Generation, TensorSpec
from appliance.models.tensors import Array
from appliance.system import heap
from appliance.system.dlls import Libraries

STREAMS = 8
_MOST_STREAMS = 64
_PIECES = (8, 16, 32, 64, 128, 256, 512)
_PIECE_S = 0.05
_TRIES = 4  # the first one finds memory and kernels; others may meet a busy moment of the machine
_LOGITS_BYTES = 64 << 20
_CAN = ("logprobs", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed")


class GenaiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[backend_options]`` of a language model's ``model.toml``.

    ``streams``: answers at once; ``prompt_piece``: tokens of a prompt that are read in one turn, None: as many as
    take 0.05 s, measured at load.
    """

    streams: int | None = None
    prompt_piece: int | None = None


class GenaiBackend:
    """Opens folders with a ``genai_config.json``."""

    name = "genai"

    def __init__(self, libraries: Libraries | None = None) -> None:
        """``libraries``: where CUDA's are; None: only where the system looks."""
        self._cuda = onnx_device.CudaLibraries(libraries)
        og.disable_telemetry_events()  # the variable has done so already, where there is telemetry by 1DS

    def runtimes(self) -> dict[str, str]:
        return {str(og.__id__): str(og.__version__)}

    def providers(self) -> tuple[str, ...]:
        return genai_device.available()

    def memory(self) -> dict[str, tuple[int, int, int]]:
        return {}

    def open(self, request: LoadRequest) -> "GenaiSession":
        """Read the configuration (nothing outside the model's folder is opened), then the model."""
        facts = genai_config.read(request.path, request.root)
        options = _options(request)
        placed = genai_device.place(request, self._cuda)
        genai_device.use(placed.index)
        try:
            if facts.paged:
                return _shared(placed, facts, options, request.model)
            return _single(placed, facts, options, request.model)
        except Exception as error:  # noqa: BLE001 - the library raises nothing but RuntimeError
            raise onnx_errors.load_error(error, (), request.path) from None


class GenaiSession:
    """An open language model."""

    def __init__(self, opened: Opened, loop: DecodeLoop) -> None:
        self.opened = opened
        self._loop = loop

    def cancellation(self) -> Handle:
        return Handle()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        raise ModelError("a language model answers in streams")

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        assert isinstance(handle, Handle)
        assert self.opened.generation is not None
        prompt, options = read(inputs, self.opened.generation)
        if handle.cancelled:
            raise Cancelled("cancelled before it spoke")
        stream = Stream(prompt, options, handle, self._loop.room)
        self._loop.submit(stream)
        try:
            yield from stream.parts(outputs, self._loop.thread)
        finally:
            handle.cancel()  # a reader that goes early leaves nothing behind

    def close(self) -> None:
        self._loop.close()
        heap.give_back()


def token_bytes(facts: GenaiFacts, element: int) -> int:
    """What the KV cache takes for one token: 2 × layers × KV heads × head size × bytes of an element.

    2: keys and values. As ``onnxruntime-genai`` allocates it: per layer two tensors of [batch, KV heads, length, head
    size] in the type of the model's ``past_key_values`` (its ``src/models/kv_cache.cpp``), of the full length of
    prompt and answer from the start. Without ``past_present_share_buffer`` the cache is copied to one of one token
    more at each step, and there are two of them meanwhile. Source of the formula itself: Kwon et al., "Efficient
    Memory Management for Large Language Model Serving with PagedAttention" (2023), section 1.
    """
    return 2 * facts.layers * facts.kv_heads * facts.head_size * element * (1 if facts.shared else 2)


def _options(request: LoadRequest) -> GenaiOptions:
    try:
        options = msgspec.convert(request.config.backend_options, GenaiOptions)
    except msgspec.ValidationError as error:
        raise ModelLoadError(f"backend_options: {error}") from None
    if options.streams is not None and not 1 <= options.streams <= _MOST_STREAMS:
        raise ModelLoadError(f"backend_options.streams must be 1 to {_MOST_STREAMS}")
    if options.prompt_piece is not None and not 1 <= options.prompt_piece <= 4096:
        raise ModelLoadError("backend_options.prompt_piece must be 1 to 4096")
    if request.config.instances > 1:
        raise ModelLoadError("instances: a language model has one copy; say 'streams' in [backend_options] instead")
    return options


def _single(placed: genai_device.Placed, facts: GenaiFacts, options: GenaiOptions, name: str) -> GenaiSession:
    """A model whose streams have a ``Generator`` each."""
    element = _element_bytes(placed.model, facts)
    piece = options.prompt_piece or _measured_piece(placed.model, facts)
    says = Generation(
        context=facts.context,
        streams=options.streams or STREAMS,
        token_bytes=token_bytes(facts, element),
        vocabulary=facts.vocabulary,
        ends=facts.ends,
        can=(*_CAN, "guidance") if _can_guide(placed.model, facts) else _CAN,
    )
    begin = partial(Voice, placed.model, ends=frozenset(facts.ends), vocabulary=facts.vocabulary)

    def make() -> VoiceTurns:
        genai_device.use(placed.index)
        return VoiceTurns(begin, piece)

    return GenaiSession(_told(placed, says, f"prompts are read {piece} tokens at a time"), DecodeLoop(name, make))


def _shared(placed: genai_device.Placed, facts: GenaiFacts, options: GenaiOptions, name: str) -> GenaiSession:
    """A model whose streams share the library's engine. Its pool of KV caches counts as weights: it is there now."""
    made: list[EngineTurns] = []

    def make() -> EngineTurns:
        genai_device.use(placed.index)
        made.append(EngineTurns(placed.model, facts.vocabulary))
        return made[0]

    loop = DecodeLoop(name, make)
    loop.ready()
    says = Generation(
        context=min(facts.context, made[0].longest or facts.context),
        streams=min(options.streams or facts.paged, facts.paged, _MOST_STREAMS),
        token_bytes=0,
        vocabulary=facts.vocabulary,
        ends=facts.ends,
        can=CAN,
    )
    return GenaiSession(_told(placed, says, "streams share the library's engine"), loop)


def _told(placed: genai_device.Placed, says: Generation, note: str) -> Opened:
    return Opened(
        platform="onnxruntime_genai",
        inputs=(TensorSpec("input_ids", "INT32", (-1,)), TensorSpec("options", "BYTES", (1,))),
        outputs=(
            TensorSpec("token_ids", "INT32", (-1,)),
            TensorSpec("logprobs", "FP32", (-1,)),
            TensorSpec("finish", "BYTES", (-1,)),
        ),
        device=placed.device,
        providers=placed.providers,
        degraded=placed.degraded,
        notes=(note,),
        generation=says,
    )


def _generator(model: Any, length: int, guidance: tuple[str, str] | None = None) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=length, do_sample=False)
    if guidance is not None:
        params.set_guidance(*guidance)
    return og.Generator(model, params)


def _element_bytes(model: Any, facts: GenaiFacts) -> int:
    """Bytes of one number of the KV cache, from the cache itself; 4 where it cannot be looked at."""
    generator = _generator(model, min(4, facts.context))
    generator.append_tokens([0])
    try:
        return int(generator.get_input(facts.key).itemsize)
    except (RuntimeError, TypeError):  # a type that numpy has not
        return 4


def _measured_piece(model: Any, facts: GenaiFacts) -> int:
    """The largest piece that takes no longer than 0.05 s, and whose logits (FP32[piece, vocabulary], which the
    library makes of every token of a prompt) stay below 64 MB. What it takes of the device is then taken already."""
    chosen = _PIECES[0]
    for piece in _PIECES:
        if piece >= facts.context or piece * facts.vocabulary * 4 > _LOGITS_BYTES:
            break
        for _ in range(_TRIES):
            generator = _generator(model, piece + 1)
            started = time.perf_counter()
            generator.append_tokens(np.zeros(piece, np.int32))
            if time.perf_counter() - started <= _PIECE_S:
                chosen = piece
                break
        if chosen != piece:
            break
    return min(chosen, facts.context)


def _can_guide(model: Any, facts: GenaiFacts) -> bool:
    """Whether this build can, and knows the model's tokenizer. Afterwards the tokenizer is read."""
    try:
        _generator(model, min(4, facts.context), ("regex", "[a-z]"))
    except RuntimeError as error:
        return guidance_error(error) is not None
    return True
