"""The interfaces of other loaders, over tload. Opt-in: nothing here is imported by `import tload`."""
