"""A run tried in small before it takes days, and the memory, time and disk that it will need.

A configuration is made small (``reduce``) and played through (``smoke``); of a sweep one of each
kind. A training step of it is measured (``measure``) and scaled to the real one (``memory``), whose
weights are counted without loading them (``model_weights``). What a device has is held against it
in lines of text (``forecast``).
"""
