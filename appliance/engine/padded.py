"""A loaded copy whose items are filled up to buckets; models without that never come here. (Child side.)"""

import time
from collections.abc import Sequence

from appliance.backends.base import Cancellation, Session
from appliance.engine.canary import Health
from appliance.engine.lanes import LoadedModel, Send, _Job
from appliance.engine.merge import Filled, Padding
from appliance.engine.messages import ItemFailure
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Array, Tensor


class PaddedModel(LoadedModel):
    """As ``LoadedModel``, for a spec with ``pads``.

    An item alone is filled up too, so its answer does not depend on who shared its run. Values that are not finite
    count only where they are left after cutting back.
    """

    def __init__(self, spec: ModelSpec, session: Session, send: Send, health: Health | None = None) -> None:
        super().__init__(spec, session, send, health=health)
        self._padding = Padding(spec.pads, spec.inputs)

    def _batch(self, job: _Job) -> tuple[list[list[Tensor] | ItemFailure], int, bool]:
        outputs, handle = job.message.outputs, job.handle
        items = job.arrays()
        started = time.perf_counter_ns()
        if len(items) == 1:
            found = self._one(items[0], outputs, handle)
            return [found], time.perf_counter_ns() - started, False
        ran_out, group = False, self._padding.filled(items)
        if group is not None:
            try:
                arrays = self._once(group.batch, outputs, handle)
                if all(a.ndim and a.shape[0] == sum(group.sizes) for a in arrays):
                    run_ns = time.perf_counter_ns() - started
                    return self._split(group, outputs, arrays), run_ns, False
            except Cancelled:
                raise
            except ApplianceError as error:  # one item's fault, or too much memory for all of them at once
                ran_out = isinstance(error, InsufficientMemory)
        alone = [self._alone(item, outputs, handle) for item in items]
        return alone, time.perf_counter_ns() - started, ran_out

    def _one(self, item: dict[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Tensor]:
        """Raises ApplianceError."""
        group = self._padding.filled([item])
        if group is None:
            return self._checked(outputs, self._once(item, outputs, handle))
        arrays = self._once(group.batch, outputs, handle)
        return self._checked(outputs, self._padding.cut(outputs, arrays, group.own[0], group.bucket))

    def _alone(
        self, inputs: dict[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> list[Tensor] | ItemFailure:
        try:
            return self._one(inputs, outputs, handle)
        except ApplianceError as error:
            return ItemFailure(error.code, error.message)

    def _split(
        self, group: Filled, outputs: Sequence[str], arrays: Sequence[Array]
    ) -> list[list[Tensor] | ItemFailure]:
        results: list[list[Tensor] | ItemFailure] = []
        at = 0
        for size, own in zip(group.sizes, group.own, strict=True):
            rows = [a[at : at + size] for a in arrays]
            at += size
            try:
                results.append(self._checked(outputs, self._padding.cut(outputs, rows, own, group.bucket)))
            except ApplianceError as error:
                results.append(ItemFailure(error.code, error.message))
        return results
