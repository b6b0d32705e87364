"""Interfaces of other loaders, implemented with tload.

Opt-in: `import tload` does not import them.
"""
