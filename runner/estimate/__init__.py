"""A run tried in small before it takes days, and what the real one will need of memory, time and disk.

A configuration is made small (``reduce``) and played through (``smoke``); of a sweep one of each kind. A training step
of it is measured (``measure``) and scaled to the real one (``memory``), whose weights are counted without loading
them (``weights``), and held against what a device has (``table``).
"""
