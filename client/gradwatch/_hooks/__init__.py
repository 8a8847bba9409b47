"""Observations by hooks on the model, the optimizers and the scaler."""
