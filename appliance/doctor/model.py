"""The model of one node that is tried on each execution provider."""

import base64

MODEL = base64.b64decode(
    "CAg6cAoPCgF4CgF3EgF5IgRDb252EgZkb2N0b3JaGwoBeBIWChQIARIQCgIIAQoCCAEKAggICgIICFobCgF3EhYKFAgBEhAKAggBCgIIAQoC"
    "CAMKAggDYhsKAXkSFgoUCAESEAoCCAEKAggBCgIIBgoCCAZCBAoAEA0="
)
"""Opset 13, FP32: y[1,1,6,6] = Conv(x[1,1,8,8], w[1,1,3,3]). A convolution, since that needs all of cuDNN."""

X, W, SUM = (1, 1, 8, 8), (1, 1, 3, 3), 9.0
"""The inputs' shapes, and what each element of the answer is where all of theirs are 1."""
