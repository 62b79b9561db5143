"""Bytes ↔ tensors, per kind of task."""
