"""Processes that load together."""
