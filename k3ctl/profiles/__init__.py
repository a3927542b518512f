"""Hardware, platforms, models and engines as data, and the loaders that make frozen types of it."""
