"""Lanes: real threads, the fake backend, and sessions made to misbehave."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.backends.base import Cancellation, LoadRequest, Opened
from appliance.backends.fake import FakeBackend
from appliance.engine.canary import watch
from appliance.engine.lanes import LoadedModel
from appliance.engine.messages import (
    Chunk,
    End,
    Failed,
    ItemFailure,
    Result,
    Run,
    Unfit,
    attach,
    buffers,
    describe,
)
from appliance.errors import Cancelled, InsufficientMemory, InvalidInput, ModelError
from appliance.models.spec import ModelConfig, ModelSpec, TensorSpec, Warmup
from appliance.models.tensors import Array, Tensor, from_array, to_array


class Host:
    """Collects what the engine would send, and waits for it."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, bytes]] = []
        self._news = threading.Condition()

    def __call__(self, message: Any, payload: Sequence[Any]) -> None:
        with self._news:
            self.sent.append((message, b"".join(payload)))
            self._news.notify_all()

    def wait(self, count: int, seconds: float = 20) -> list[tuple[Any, bytes]]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.sent) >= count, seconds), self.sent
            return list(self.sent)

    def answer(self, run_id: int) -> Any:
        """The end of a run, whichever it is."""

        def ends() -> list[Any]:
            return [m for m, _ in self.sent if isinstance(m, Result | End | Failed) and m.id == run_id]

        with self._news:
            assert self._news.wait_for(ends, 20), self.sent
            (found,) = ends()
            return found

    def values(self, run_id: int) -> list[Any]:
        """Per item: the rows of its first output, or the code of its failure."""
        result = self.answer(run_id)
        assert isinstance(result, Result), result
        payload = next(p for m, p in self.sent if m is result)
        found: list[Any] = []
        at = 0
        for item in result.items:
            if isinstance(item, ItemFailure):
                found.append(item.code)
            else:
                tensors, at = attach(item.tensors, memoryview(payload), at)
                found.append(to_array(tensors[0]).tolist())
        assert at == len(payload)
        return found


def spec(instances: int = 1, outputs: tuple[TensorSpec, ...] = ()) -> ModelSpec:
    return ModelSpec("m", "1", "fake", "fake", (), outputs, config=ModelConfig(instances=instances))


def fake(**options: Any) -> Any:
    request = LoadRequest("m", Path("x"), Path(), "cpu", 0, ModelConfig(backend_options=options))
    return FakeBackend().open(request)


def loaded(spec: ModelSpec, session: Any, host: Host, linger_s: float = 0.1) -> LoadedModel:
    """With lanes that do not outlive their test by a minute."""
    return LoadedModel(spec, session, host, linger_s)


def run_message(run_id: int, *items: list[list[float]], stream: bool = False) -> tuple[Run, memoryview]:
    tensors = [(from_array("x", np.array(item, np.float32)),) for item in items]
    payload = memoryview(b"".join(bytes(b) for item in tensors for b in buffers(item)))
    return Run(run_id, 1, tuple(describe(t) for t in tensors), ("y",), stream), payload


class Scripted:
    """A session that does what a function says; counts its calls and how many run at once."""

    opened = Opened("fake", (), (), "cpu", ())

    def __init__(self, does: Any) -> None:
        self.does = does
        self.calls: list[Array] = []
        self.closed = False

    def cancellation(self) -> Any:
        return _Handle()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        self.calls.append(inputs["x"])
        found: list[Array] = self.does(inputs["x"])
        return found

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        yield self.run(inputs, outputs, handle)

    def close(self) -> None:
        self.closed = True


class _Handle:
    def cancel(self) -> None: ...


def test_one_item() -> None:
    host = Host()
    model = loaded(spec(), fake(gain=3.0), host)
    model.submit(*run_message(5, [[1, 2], [3, 4]]))
    assert host.values(5) == [[[3, 6], [9, 12]]]
    result = host.answer(5)
    assert 0 < result.run_ns <= result.total_ns


def test_items_are_run_together_and_come_apart_again() -> None:
    session = Scripted(lambda x: [x * 10])
    host = Host()
    model = loaded(spec(), session, host)
    model.submit(*run_message(1, [[1]], [[2], [3]], [[4]]))
    assert host.values(1) == [[[10]], [[20], [30]], [[40]]]
    assert [c.tolist() for c in session.calls] == [[[1], [2], [3], [4]]]


@pytest.mark.parametrize("bad", [lambda x: x.sum(0, keepdims=True), lambda x: np.float32(x.sum()) * np.ones(())])
def test_a_batch_that_does_not_come_apart_is_run_item_by_item(bad: Any) -> None:
    def does(x: Array) -> list[Array]:
        return [bad(x)] if len(x) > 1 else [x]

    session = Scripted(does)
    host = Host()
    loaded(spec(), session, host).submit(*run_message(1, [[1]], [[2]], [[3]]))
    assert host.values(1) == [[[1]], [[2]], [[3]]]
    assert [len(c) for c in session.calls] == [3, 1, 1, 1]


@pytest.mark.parametrize(
    "error", [ModelError("m"), InvalidInput("i"), InsufficientMemory("o")], ids=lambda e: type(e).__name__
)
def test_one_bad_item_harms_only_itself(error: Exception) -> None:
    def does(x: Array) -> list[Array]:
        if 2 in x:
            raise error
        return [x]

    host = Host()
    loaded(spec(), Scripted(does), host).submit(*run_message(1, [[1]], [[2]], [[3]]))
    assert host.values(1) == [[[1]], error.code, [[3]]]  # type: ignore[attr-defined]


def test_too_large_a_batch_is_split() -> None:
    def does(x: Array) -> list[Array]:
        if len(x) > 1:
            raise InsufficientMemory("too much at once")
        return [x]

    host = Host()
    loaded(spec(), Scripted(does), host).submit(*run_message(1, [[1]], [[2]]))
    assert host.values(1) == [[[1]], [[2]]]


def test_a_single_item_s_failure_is_the_run_s() -> None:
    host = Host()
    loaded(spec(), fake(fail_on=7), host).submit(*run_message(1, [[7]]))
    assert host.answer(1) == Failed("run", 1, "model_error", "the fake model failed")


def test_a_lane_outlives_faults_of_its_own() -> None:
    def does(x: Array) -> list[Array]:
        if 1 in x:
            raise RuntimeError("/secret/path")
        return [x]

    host = Host()
    model = loaded(spec(instances=2), Scripted(does), host)
    for n in range(6):
        model.submit(*run_message(n, [[1]]))
    short = run_message(6, [[5]])
    model.submit(short[0], short[1][:2])  # a payload that is cut off
    model.submit(*run_message(7, [[5]]))
    assert host.values(7) == [[[5]]]
    assert host.answer(0) == Failed("run", 0, "model_error", "RuntimeError in the engine")
    assert host.answer(6).code == "model_error"
    wait_until(lambda: model.busy == 0)


def test_a_stream() -> None:
    host = Host()
    model = loaded(spec(), fake(chunks=3, gain=1.0), host)
    model.submit(*run_message(1, [[1, 2, 3, 4, 5, 6]], stream=True))
    host.answer(1)
    sent = host.sent
    assert [type(m) for m, _ in sent] == [Chunk, Chunk, Chunk, End]
    assert [np.frombuffer(p, np.float32).tolist() for _, p in sent[:3]] == [[1, 2], [3, 4], [5, 6]]
    assert sent[0][0].tensors[0].shape == (1, 2)


def test_a_stream_that_fails_on_its_way() -> None:
    host = Host()
    loaded(spec(), fake(chunks=2, fail_on=2), host).submit(*run_message(1, [[1, 2]], stream=True))
    assert host.answer(1).code == "model_error"
    assert isinstance(host.sent[0][0], Chunk)


def test_bf16_outputs_keep_their_datatype() -> None:
    host = Host()
    described = (TensorSpec("y", "BF16", (-1,)),)
    model = loaded(spec(outputs=described), Scripted(lambda x: [np.array([16256], np.uint16)]), host)
    model.submit(*run_message(1, [[1]]))
    meta = host.answer(1).items[0].tensors[0]
    assert (meta.datatype, meta.shape, meta.nbytes) == ("BF16", (1,), 2)


def test_texts_are_merged_like_numbers() -> None:
    session = Scripted(lambda x: [x])
    host = Host()
    model = loaded(spec(), session, host)
    items = [(from_array("x", np.array([[t]], dtype=object)),) for t in (b"one", "zwölf")]
    payload = memoryview(b"".join(bytes(b) for item in items for b in buffers(item)))
    model.submit(Run(1, 1, tuple(describe(t) for t in items), ("y",)), payload)
    assert host.values(1) == [[[b"one"]], [["zwölf".encode()]]]


# --- lanes as threads ----------------------------------------------------------------------------------------


def wait_until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def lanes() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "lane m"]


@pytest.fixture(autouse=True)
def no_lane_of_another_test() -> None:
    wait_until(lambda: not lanes())


def test_as_many_at_once_as_instances_and_no_more() -> None:
    gate, most, now = threading.Event(), 0, 0
    lock = threading.Lock()

    def does(x: Array) -> list[Array]:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        gate.wait(20)
        with lock:
            now -= 1
        return [x]

    host = Host()
    model = loaded(spec(instances=2), Scripted(does), host)
    for n in range(5):
        model.submit(*run_message(n, [[n]]))
    wait_until(lambda: now == 2)
    time.sleep(0.05)
    assert (most, model.busy, len(lanes())) == (2, 5, 2)
    gate.set()
    host.wait(5)
    assert most == 2
    assert sorted(host.values(n)[0][0][0] for n in range(5)) == [0, 1, 2, 3, 4]


def test_lanes_start_with_work_and_end_after_a_while_without() -> None:
    host = Host()
    model = loaded(spec(instances=4), fake(), host, linger_s=0.05)
    assert lanes() == []
    model.submit(*run_message(1, [[1]]))
    host.wait(1)
    assert len(lanes()) <= 1
    wait_until(lambda: not lanes())
    model.submit(*run_message(2, [[1]]))
    assert host.values(2) == [[[2]]]


class SlowQueue:
    """Takes its time between the decision to queue and the queueing."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, job: Any) -> None:
        time.sleep(0.3)
        self.inner.put(job)


def test_no_run_is_lost_to_a_lane_that_ends_just_now() -> None:
    host = Host()
    model = loaded(spec(), Scripted(lambda x: [x]), host, linger_s=0.1)
    model.submit(*run_message(1, [[1]]))
    wait_until(lambda: model._idle == 1)
    model._jobs = SlowQueue(model._jobs)  # type: ignore[assignment]
    model.submit(*run_message(2, [[2]]))  # the idle lane's time is up in the middle of this
    assert host.values(2) == [[[2]]]


def test_cancel_ends_a_run_early_and_ignores_strangers() -> None:
    host = Host()
    model = loaded(spec(), fake(run_ms=20_000), host)
    started = time.monotonic()
    model.submit(*run_message(1, [[1]]))
    model.submit(*run_message(2, [[1]]))
    model.cancel(99)
    model.cancel(2)  # it waits for the lane
    model.cancel(1)
    assert host.answer(1).code == "cancelled"
    assert host.answer(2).code == "cancelled"
    assert time.monotonic() - started < 10


def test_a_cancelled_batch_is_not_run_item_by_item() -> None:
    def does(x: Array) -> list[Array]:
        raise Cancelled("as asked")

    session = Scripted(does)
    host = Host()
    loaded(spec(), session, host).submit(*run_message(1, [[1]], [[2]]))
    assert host.answer(1).code == "cancelled"
    assert len(session.calls) == 1


def test_close_waits_for_the_runs_in_flight_and_takes_no_more() -> None:
    gate = threading.Event()

    def does(x: Array) -> list[Array]:
        gate.wait(20)
        return [x]

    session = Scripted(does)
    host = Host()
    model = loaded(spec(), session, host)
    model.submit(*run_message(1, [[1]]))
    model.submit(*run_message(2, [[2]]))
    closer = threading.Thread(target=model.close)
    closer.start()
    wait_until(lambda: model._closing)
    model.submit(*run_message(3, [[3]]))
    assert host.answer(3) == Failed("run", 3, "model_not_found", "the model is being unloaded")
    assert not session.closed
    gate.set()
    closer.join(20)
    assert session.closed
    assert host.values(1) == [[[1]]]
    assert host.values(2) == [[[2]]]


def test_the_tensors_helper_keeps_shapes() -> None:
    model = loaded(spec(), fake(), Host())
    (tensor,) = model._tensors(["y"], [np.zeros((0, 3), np.float32)])
    assert tensor == Tensor("y", "FP32", (0, 3), b"")


# --- not finite, and the canary --------------------------------------------------------------------------------


def watched(session: Any, host: Host, **config: Any) -> LoadedModel:
    """A model with the health that loading it would give it."""
    known = spec(outputs=session.opened.outputs)
    health = watch(session, "m", ModelConfig(warmup=Warmup(shapes={"x": [1, 2]}), **config), batched=True)
    return LoadedModel(known, session, host, 0.1, health)


def test_an_item_that_is_not_finite_is_refused_alone() -> None:
    host = Host()
    model = watched(fake(nan_on=5), host)
    model.submit(*run_message(1, [[1, 2]], [[5, 1]], [[3, 4], [6, 7]]))
    assert host.values(1) == [[[2, 4]], "invalid_output", [[6, 8], [12, 14]]]
    model.submit(*run_message(2, [[5, 5]]))
    failed = host.answer(2)
    assert isinstance(failed, Failed) and failed.code == "invalid_output"
    assert failed.message == "output 'y' is not finite (a NaN or an infinity)"
    assert not [m for m, _ in host.sent if isinstance(m, Unfit)]


def test_a_part_of_a_stream_that_is_not_finite_ends_it() -> None:
    host = Host()
    model = watched(fake(nan_on=5, chunks=2), host)
    model.submit(*run_message(1, [[1, 5]], stream=True))
    assert host.answer(1).code == "invalid_output"


def test_not_finite_may_be_allowed() -> None:
    host = Host()
    model = watched(fake(nan_on=5), host, finite=False)
    model.submit(*run_message(1, [[1, 5]]))
    ((first, second),) = host.values(1)[0]
    assert first == 2 and np.isnan(second)


@pytest.mark.parametrize("doubt", [{"nan_on": 5}, {"oom_on": 5}])
def test_a_canary_that_differs_is_told_instead_of_an_answer(doubt: dict[str, float]) -> None:
    host = Host()
    model = watched(fake(sick_on=7, **doubt), host)
    model.submit(*run_message(1, [[7, 1]]))  # wrong from here on, but nothing shows it
    assert host.values(1) == [[[28, 4]]]
    model.submit(*run_message(2, [[1, 2]], [[5, 1]]))
    message, payload = host.wait(2)[1]
    assert isinstance(message, Unfit) and payload == b""
    assert "another answer than at warm-up" in message.reason


def test_a_lost_device_ends_the_engine_whoever_shared_the_run() -> None:
    host = Host()
    model = loaded(spec(), fake(lose_on=7), host)
    x = [Tensor("x", "FP32", (1, 1), from_array("x", np.array([[v]], np.float32)).data) for v in (7.0, 1.0)]
    model.submit(Run(1, 0, tuple(describe([t]) for t in x), ("y",)), memoryview(b"".join(buffers(x))))
    ((message, _),) = host.wait(1)
    assert message == Unfit("the device of model 'm' is lost: the fake device is lost")


def test_a_check_runs_the_canary_though_it_has_just_passed() -> None:
    session, host = fake(sick_on=7), Host()
    model = LoadedModel(spec(), session, host, 0.1, watch(session, "m", ModelConfig(), True))
    assert model.has_canary
    assert model.check() is None and model.check() is None
    session.run({"x": np.array([[7.0]], np.float32)}, ["y"], session.cancellation())
    assert "gives another answer" in (model.check() or "")
    assert not model.busy
    model.close()
    assert model.check() is None, "one that is being unloaded is nobody's concern"


def test_a_check_is_waited_for_and_nothing_runs_in_the_reader_s_thread_meanwhile() -> None:
    session, host = fake(run_ms=200), Host()
    model = LoadedModel(spec(), session, host, 0.1, watch(session, "m", ModelConfig(), True))
    model._expected_ns = 0
    assert model.quick
    checking = threading.Thread(target=model.check)
    checking.start()
    while not model.busy:
        time.sleep(0.001)
    assert not model.quick
    model.close()
    assert not model.busy
    checking.join()
