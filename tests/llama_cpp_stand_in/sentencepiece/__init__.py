"""A stand-in, which is only looked for."""
