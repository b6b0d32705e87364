"""Copies, lists and verification of whole checkpoints."""
