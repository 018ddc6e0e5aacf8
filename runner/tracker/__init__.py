"""Trackers of the ``tracker`` group: ``variable`` says where to, ``callback`` adds what transformers' own leave out."""
