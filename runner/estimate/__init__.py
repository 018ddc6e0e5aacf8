"""A run tried in small before it takes days, and what the real one will need of memory, time and disk.

A configuration is made small (``reduce``) and played through (``smoke``), each part in a ``process`` of its own; one of
each kind stands for a sweep (``group``). A training step of small models is measured (``measure``) and scaled to the
real one (``memory``, ``steps``, ``table``), whose weights are counted without loading them (``weights``).
"""
