"""A declarative experiment runner for post-training language models.

The house, from the door inwards: ``__main__`` reads the command line, ``config`` composes and
checks it, ``run``
lays the folder, ``launcher`` starts a process, ``work`` reads the folder, ``command`` holds the
verbs, and the rooms
``dataset``, ``model``, ``reward``, ``trainer`` and ``report`` hold the parts. Nothing is imported
here.
"""
