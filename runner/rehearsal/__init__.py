"""A run played through at a size that takes seconds: what becomes of its configuration (``reduce``), which runs of a
sweep are alike (``cast``), and what is done with it (``play``).

What the real run will need is in ``runner.forecast``.
"""
