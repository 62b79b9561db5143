"""``appliance bench``: what a model does under load here, and which of its settings would do better."""
