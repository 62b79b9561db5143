"""Non-maximum suppression: of boxes of one class that cover the same thing, the best stays."""

import numpy as np

from appliance.models.tensors import Array


def iou_with(box: Array, boxes: Array) -> Array:
    """Intersection over union of ``box`` [4] with each of ``boxes`` [N,4] (x1,y1,x2,y2); 0 for empty boxes."""
    low = np.maximum(box[:2], boxes[:, :2])
    high = np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    union = np.prod(np.maximum(box[2:] - box[:2], 0)) + areas - shared
    share: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return share


def suppress(boxes: Array, scores: Array, classes: Array, iou: float, limit: int) -> Array:
    """Indices of the boxes that stay, best first, at most ``limit``.

    Greedy, per class: a box goes if its IoU with a better one of its class that stays is over ``iou``. Equal
    scores keep their order. One step per box that stays, so ``limit`` bounds the work.
    """
    order = np.argsort(-scores, kind="stable")
    if iou >= 1:
        return order[:limit]
    boxes, classes = boxes[order].astype(np.float64), classes[order]
    alive, kept = np.arange(len(order)), list[int]()
    while alive.size and len(kept) < limit:
        best, rest = alive[0], alive[1:]
        kept.append(best)
        covered = (iou_with(boxes[best], boxes[rest]) > iou) & (classes[rest] == classes[best])
        alive = rest[~covered]
    return order[kept]
