"""The check for values that are not finite, and the canary: with the fake backend and sessions made to misbehave."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from appliance.backends.base import Cancellation, Opened
from appliance.engine.canary import Health, is_finite, watch
from appliance.errors import Cancelled, InsufficientMemory, ModelError
from appliance.models.spec import ModelConfig, TensorSpec, Warmup
from appliance.models.tensors import Array

X = TensorSpec("x", "FP32", (-1, 4))
Y = TensorSpec("y", "FP32", (-1, 4))
Z = TensorSpec("z", "FP32", (-1, 4))
N = TensorSpec("n", "INT64", (-1, 4))


class Session:
    """``y`` = 2 x, ``z`` = what the test says, ``n`` = 1; ``fault``: what a run raises; ``runs``: how many."""

    def __init__(self, *outputs: TensorSpec, z: float = 1.0) -> None:
        self.opened = Opened("fake", (X,), outputs or (Y,), "cpu", ())
        self.z = z
        self.factor = 2.0
        self.fault: Exception | None = None
        self.runs = 0

    def cancellation(self) -> Any:
        return None

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        self.runs += 1
        if self.fault is not None:
            raise self.fault
        x = inputs["x"]
        values = {"y": x * np.float32(self.factor), "z": np.full_like(x, self.z), "n": np.ones(x.shape, np.int64)}
        return [values[name] for name in outputs]

    def stream(self, *_: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def looked_at(session: Session, **config: Any) -> Health:
    return watch(session, "m", ModelConfig(**config), batched=True)


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
def test_what_is_finite(datatype: str) -> None:
    dtype = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16}[datatype]

    def finite(*values: float) -> bool:
        array = np.array([values], dtype=dtype)
        return is_finite(datatype, array.view(np.uint16) if datatype == "BF16" else array)

    top = float(ml_dtypes.finfo(dtype).max)
    assert finite(0.0, -0.0, 1.0, top, -top, float(ml_dtypes.finfo(dtype).smallest_subnormal))
    assert finite()
    for value in (np.nan, np.inf, -np.inf):
        assert not finite(1.0, value, 2.0)


def test_part_of_an_array() -> None:
    whole = np.array([[1.0, 2.0], [np.nan, 3.0]], np.float16)
    assert is_finite("FP16", whole[:1])
    assert not is_finite("FP16", whole[1:])
    assert not is_finite("FP16", whole[:, 0])
    assert is_finite("FP16", whole[:, 1])


def test_integers_and_texts_are_finite() -> None:
    assert is_finite("INT64", np.array([2**62]))
    assert is_finite("BYTES", np.array([b"nan"], object))


def test_those_that_were_finite_at_warm_up_must_be() -> None:
    health = looked_at(Session(Y, Z, N, z=np.inf))
    assert health.finite == {"y"} and health.notes == ()
    bad, good = np.array([[np.nan]], np.float32), np.array([[1]], np.float32)
    assert health.fault(["y", "z"], [good, bad]) is None
    assert health.fault(["z", "y"], [good, bad]) == "y"
    assert health.fault(["n"], [np.array([1])]) is None


def test_the_model_s_file_decides() -> None:
    assert looked_at(Session(Y, Z, N), finite=False).finite == set()
    strict = looked_at(Session(Y, Z, N, z=np.nan), finite=True)
    assert strict.finite == {"y", "z"}
    assert strict.notes == ("finite = true, but at warm-up output 'z' is not",)


def test_without_a_warm_up_only_what_is_declared() -> None:
    for config, names in ((None, set()), (True, {"y"})):
        session = Session()
        health = looked_at(session, finite=config, warmup=Warmup(enabled=False))
        assert health.finite == names and session.runs == 0
        health.due = True
        assert health.examine(None) is None and session.runs == 0  # type: ignore[arg-type]


def test_a_warm_up_that_fails_leaves_no_canary() -> None:
    session = Session()
    session.fault = ModelError("no")
    health = looked_at(session)
    assert health.finite == set()
    health.due = True
    assert health.examine(None) is None  # type: ignore[arg-type]


def examined(session: Session, health: Health) -> str | None:
    health.due = True
    return health.examine(None)  # type: ignore[arg-type]


def test_without_doubt_nothing_runs() -> None:
    session = Session()
    health = looked_at(session)
    before = session.runs
    assert health.examine(None) is None and session.runs == before  # type: ignore[arg-type]
    assert examined(session, health) is None and session.runs == before + 1


def test_another_answer_than_at_warm_up() -> None:
    session = Session(Y, Z)
    health = looked_at(session)
    session.factor = 2.1
    words = "the canary of model 'm' gives another answer than at warm-up (output 'y')"
    assert examined(session, health) == words
    session.factor = 2.0
    assert examined(session, health) == words  # it stays so


def test_a_little_off_is_the_same() -> None:
    session = Session()
    health = looked_at(session)
    session.factor = 2.0001
    assert examined(session, health) is None


def test_a_canary_that_fails() -> None:
    session = Session()
    health = looked_at(session)
    session.fault = ModelError("the device is gone")
    assert examined(session, health) == "the canary of model 'm' fails: the device is gone"


def test_no_memory_for_the_canary_is_borne_twice() -> None:
    session, clock = Session(), Clock()
    made = looked_at(session)
    health = Health(session, "m", made.finite, made._canary, clock=clock)
    session.fault = InsufficientMemory("full")
    assert examined(session, health) is None
    assert examined(session, health) is None
    session.fault = None
    assert examined(session, health) is None
    clock.now = 10
    session.fault = InsufficientMemory("full")
    for _ in range(2):
        assert [examined(session, health) for _ in range(9)] == [None] * 9, "many at once are one event"
        clock.now += 1
    assert "no memory left" in (examined(session, health) or "")


def test_a_run_that_had_its_memory_ends_the_count() -> None:
    session, clock = Session(), Clock()
    made = looked_at(session)
    health = Health(session, "m", made.finite, made._canary, clock=clock)
    session.fault = InsufficientMemory("full")
    for _ in range(10):
        assert examined(session, health) is None
        clock.now += 1
        health.ran()


def test_one_that_has_just_passed_does_not_run_again() -> None:
    session, clock = Session(), Clock()
    made = looked_at(session)
    health = Health(session, "m", made.finite, made._canary, clock=clock)
    before = session.runs
    for moment, runs in ((0.0, 1), (0.5, 1), (1.5, 2)):
        clock.now = moment
        assert examined(session, health) is None
        assert session.runs == before + runs


def test_a_cancelled_canary_is_made_up_for() -> None:
    session = Session()
    health = looked_at(session)
    session.fault = Cancelled("cancelled")
    assert examined(session, health) is None and health.due
    session.fault, session.factor = None, 3.0
    assert "another answer" in (health.examine(None) or "")  # type: ignore[arg-type]


def test_a_model_that_never_gives_the_same_has_no_canary() -> None:
    class Random(Session):
        def run(self, *args: Any) -> list[Array]:
            self.factor += 1
            return super().run(*args)

    session = Random()
    health = looked_at(session)
    assert health.finite == {"y"}
    assert examined(session, health) is None


def test_only_the_beginning_of_large_outputs_is_kept() -> None:
    health = watch(Session(), "m", ModelConfig(warmup=Warmup(shapes={"x": [1, 500_000]})), batched=False)
    assert health._canary is not None
    ((shape, kept),) = health._canary.outputs
    assert shape == (1, 500_000) and kept.size == 1 << 16 and kept.base is None
