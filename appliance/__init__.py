"""The Inference Appliance: a local inference server that keeps answering.

Importing this package is free: no environment is read, nothing is logged, no native runtime is loaded.
"""

__version__ = "0.1.0"
