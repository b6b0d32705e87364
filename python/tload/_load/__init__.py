"""Loads: streams of tensors, dicts, the caller's memory, and single tensors."""
