"""A run tried in small before it takes days, and the memory, time and disk that it will need.

A configuration is made small (``reduce``) and played through (``smoke``, by the parts in
``smoke_parts``); of a sweep one of each kind (``case``). ``outcome`` says what came of it. A
training step of it is measured (``measure``) and scaled to the real one (``memory``), whose weights
are counted without loading them (``model_weights``). What a device has is held against it in lines
of text (``forecast``), for each real run (``needs``).
"""
