"""Checks on a real GPU: ``python -m tests.gpu``. See README.md beside this file."""
