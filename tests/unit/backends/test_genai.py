"""Language models through ONNX Runtime GenAI, with a model whose answers are worked out by hand (tests/support)."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_genai")

from appliance.backends.base import Session
from appliance.backends.genai import token_bytes
from appliance.backends.genai_stream import AHEAD, Stream
from appliance.errors import (
    ApplianceError,
    Cancelled,
    ContextLengthExceeded,
    InvalidInput,
    ModelError,
    ModelLoadError,
)
from appliance.models.genai_config import GenaiFacts
from tests.support import language
from tests.support.streams import OUTPUTS, Reader, answer, inputs, opened, parts


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = language.sums(tmp_path_factory.mktemp("sums"), context=4096)
    made = opened(folder, backend_options={"streams": 16, "prompt_piece": 8})
    yield made
    made.close()


def test_what_it_says_of_itself(session: Session) -> None:
    told = session.opened.generation
    assert told is not None
    assert (told.context, told.streams, told.vocabulary, told.ends) == (4096, 16, 32, (0,))
    # Two tensors of one layer, head and number of 4 bytes each; and the copy, since the buffer is not shared.
    assert told.token_bytes == 16
    assert set(told.can) >= {"logprobs", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty"}
    assert "guidance" not in told.can  # there is no tokenizer in the folder
    assert session.opened.device == "cpu"
    assert session.opened.degraded is None
    assert [t.describe() for t in session.opened.inputs] == ["INT32[-1]", "BYTES[1]"]


def test_the_memory_of_a_token() -> None:
    llama3 = GenaiFacts("llama", 8192, 128_256, (1,), layers=32, kv_heads=8, head_size=128, key="k", shared=True)
    assert token_bytes(llama3, 2) == 131_072  # 128 KiB, as is told of Llama-3-8B in FP16


@pytest.mark.parametrize("length", [1, 7, 8, 9, 100, 1000])
def test_prompts_of_any_length_are_read_whole(session: Session, length: int) -> None:
    prompt = [(n * 7 + 3) % 32 for n in range(length)]
    expected = language.greedy(prompt, 20)
    assert answer(session, prompt, max_tokens=20)[0] == expected


def test_an_answer_ends_with_the_models_end_or_with_its_length(session: Session) -> None:
    # 5 + 6 + 7 = 18: 19, 37 → 6 (the sum is 43 → 11), 12, 24, 16, and then the end, 32 → 0.
    assert answer(session, [5, 6, 7], max_tokens=10) == ([19, 6, 12, 24, 16], "stop")
    assert answer(session, [5, 6, 7], max_tokens=3) == ([19, 6, 12], "length")
    assert answer(session, [5, 6, 7], max_tokens=10, stop_ids=(12,)) == ([19, 6], "stop")
    assert answer(session, [5, 6, 7], max_tokens=5, stop_ids=(16,)) == ([19, 6, 12, 24], "stop")


def test_its_end_can_be_left_out_of_account(session: Session) -> None:
    said, finish = answer(session, [5, 6, 7], max_tokens=9, ignore_end=True)
    # Instead of the end comes the next best, 1; the sum is 96 → 0 after that.
    assert (said[:6], len(said), finish) == ([19, 6, 12, 24, 16, 1], 9, "length")


def test_log_probabilities(session: Session) -> None:
    found = parts(session, [5, 6, 7], max_tokens=4, logprobs=True)
    said = [value for _, logprobs, _ in found for value in logprobs]
    assert said == pytest.approx([language.log_probability()] * 4, abs=1e-5)
    assert all(len(ids) == len(logprobs) for ids, logprobs, _ in found)
    assert not any(len(logprobs) for _, logprobs, _ in parts(session, [5, 6, 7]))


@pytest.mark.parametrize(("frequency", "presence"), [(0.0, 0.6), (0.6, 0.0), (0.3, 2.0), (-1.0, 0.0)])
def test_penalties_for_what_was_said(session: Session, frequency: float, presence: float) -> None:
    total, counts, expected = 5, dict.fromkeys(range(32), 0), []
    for _ in range(60):
        scores = {
            token: -((token - total - 1) % 32) / 2 - frequency * counts[token] - (presence if counts[token] else 0)
            for token in range(1, 32)
        }
        best = max(scores, key=lambda token: (round(scores[token], 3), -token))
        expected.append(best)
        counts[best] += 1
        total += best
    options = {"ignore_end": True, "frequency_penalty": frequency, "presence_penalty": presence}
    assert answer(session, [5], max_tokens=60, **options)[0] == expected


def test_a_seed_makes_an_answer_again(session: Session) -> None:
    options = {"max_tokens": 30, "temperature": 2.0, "ignore_end": True}
    first = answer(session, [3], seed=7, **options)
    assert answer(session, [3], seed=7, **options) == first
    assert answer(session, [3], seed=8, **options) != first
    assert answer(session, [3], seed=7 + 2**31, **options) == first  # the library's seeds have 31 bits
    assert answer(session, [3], **options) != answer(session, [3], **options)


def test_sampling_keeps_to_the_likeliest(session: Session) -> None:
    prompt, options = [3], {"temperature": 5.0, "top_k": 2, "seed": 1, "ignore_end": True}
    total, others = sum(prompt), 0
    for token in answer(session, prompt, max_tokens=200, **options)[0]:
        best = [t for d in range(3) if (t := (total + 1 + d) % 32) != language.END][:2]
        assert token in best
        others += token == best[1]
        total += token
    assert 50 < others < 150
    assert answer(session, prompt, temperature=5.0, top_k=1) == answer(session, prompt)
    assert answer(session, prompt, temperature=5.0, top_p=0.0) == answer(session, prompt)
    assert len(answer(session, prompt, temperature=1.0, top_k=10**6)[0]) <= 5


def test_many_at_once_are_right_each(session: Session) -> None:
    prompts = [[(n * k + 1) % 32 for k in range(1, 4 + n * 17 % 300)] for n in range(48)]
    readers = [Reader(session, prompt, max_tokens=40) for prompt in prompts]
    for prompt, reader in zip(prompts, readers, strict=True):
        assert reader.over().error is None
        assert reader.said == language.greedy(prompt, 40)


def test_only_what_is_asked_for_in_its_order(session: Session) -> None:
    (first, *_) = session.stream(inputs([5, 6, 7]), ("finish", "token_ids"), session.cancellation())
    assert [a.dtype for a in first] == [object, np.int32]


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "words"),
    [
        ([], {}, InvalidInput, "the prompt is empty"),
        ([5, 32], {}, InvalidInput, "an id that is not below 32"),
        ([-1], {}, InvalidInput, "an id that is not below 32"),
        ([1] * 4000, {"max_tokens": 97}, ContextLengthExceeded, "4000 tokens and max_tokens 97 .* context of 4096"),
        ([1], {"max_tokens": 0}, InvalidInput, "'max_tokens' must be at least 1"),
        ([1], {"top_p": 1.5}, InvalidInput, "top_p must be 0 to 1"),
        ([1], {"repetition_penalty": 0.0}, InvalidInput, "repetition_penalty above 0"),
        ([1], {"temperature": -1.0}, InvalidInput, "temperature and top_k must not be below 0"),
        ([1], {"guidance": ("regex", "a")}, InvalidInput, "'guidance' is not possible"),
    ],
)
def test_what_cannot_be_is_told(
    session: Session, prompt: list[int], options: dict[str, Any], kind: type[ApplianceError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        answer(session, prompt, **options)
    assert answer(session, [5, 6, 7]) == ([19, 6, 12, 24, 16], "length")


def test_options_that_are_none(session: Session) -> None:
    broken = inputs([1])
    broken["options"][0] = b"{"
    with pytest.raises(InvalidInput, match="'options' cannot be read"):
        list(session.stream(broken, OUTPUTS, session.cancellation()))


def test_a_cancelled_stream_ends_and_the_rest_goes_on(session: Session) -> None:
    other = Reader(session, [5], max_tokens=3000, ignore_end=True)
    reader = Reader(session, [3], max_tokens=4000, ignore_end=True)
    while len(reader.said) < 10:
        time.sleep(0.001)
    reader.handle.cancel()
    assert isinstance(reader.over().error, Cancelled)
    assert len(reader.said) < 4000
    assert len(other.over().said) == 3000
    late = session.cancellation()
    late.cancel()
    with pytest.raises(Cancelled):
        list(session.stream(inputs([1]), OUTPUTS, late))


def test_a_reader_that_goes_early_leaves_nothing_behind(session: Session) -> None:
    handle = session.cancellation()
    stream = session.stream(inputs([3], max_tokens=4000, ignore_end=True), OUTPUTS, handle)
    next(iter(stream))
    stream.close()  # type: ignore[attr-defined]
    assert handle.cancelled
    assert answer(session, [5, 6, 7]) == ([19, 6, 12, 24, 16], "length")


def test_a_reader_that_does_not_read_holds_up_nobody(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Stream] = []
    plain = Stream.__init__

    def kept(self: Stream, *args: Any) -> None:
        plain(self, *args)
        made.append(self)

    monkeypatch.setattr(Stream, "__init__", kept)
    stream = session.stream(inputs([3], max_tokens=1000, ignore_end=True), OUTPUTS, session.cancellation())
    first = next(iter(stream))
    deadline = time.monotonic() + 30
    while made[0].said < AHEAD:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert answer(session, [5, 6, 7]) == ([19, 6, 12, 24, 16], "length")
    assert made[0].said <= AHEAD + len(first[0])
    rest = [int(i) for ids, _, _ in stream for i in ids]
    assert len(first[0]) + len(rest) == 1000


def test_it_answers_in_streams_only(session: Session) -> None:
    with pytest.raises(ModelError, match="in streams"):
        session.run(inputs([1]), OUTPUTS, session.cancellation())


def test_what_is_asked_when_it_is_closed_fails(tmp_path: Path) -> None:
    made = opened(language.sums(tmp_path / "m", context=4096))
    reader = Reader(made, [3], max_tokens=4000, ignore_end=True)
    while not reader.said:
        time.sleep(0.001)
    made.close()
    assert isinstance(reader.over().error, ModelError) or len(reader.said) == 4000
    with pytest.raises(ModelError, match="unloaded"):
        answer(made, [1])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"backend_options": {"stream": 3}}, "backend_options: .*stream"),
        ({"backend_options": {"streams": 0}}, r"backend_options\.streams must be 1 to 64"),
        ({"backend_options": {"prompt_piece": 0}}, r"backend_options\.prompt_piece must be 1"),
        ({"instances": 2}, "'streams' in"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        opened(language.sums(tmp_path / "m"), **config)


def test_a_model_that_the_library_cannot_open(tmp_path: Path) -> None:
    folder = language.sums(tmp_path / "m", search={"no_such_option": 1})
    with pytest.raises(ModelLoadError) as told:
        opened(folder)
    assert str(tmp_path) not in told.value.message
