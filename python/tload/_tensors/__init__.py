"""Tensors of frameworks, the devices that they are on, and the imports of both."""
