"""What runs a model: one small protocol, one module per runtime. Only these import onnxruntime or torch."""
