"""What a model is: tensors, specs, and the folders they are read from."""
