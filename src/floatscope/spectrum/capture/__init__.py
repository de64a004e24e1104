"""`capture`: spectra of a model's weights, activations, gradients and updates while it works."""
