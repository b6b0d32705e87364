"""Checkpoints that programs hold open, and the functions that open them."""
