"""Benchmarks print tables for people; nothing here asserts a time."""
