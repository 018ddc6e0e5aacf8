"""Trackers of the ``tracker`` group: which of them there are, where they write, and what a run tells them.

The figures go there by transformers' own callbacks; ``variable`` says where to, ``callback`` adds what those leave out.
"""
