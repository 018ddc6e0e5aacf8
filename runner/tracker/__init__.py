"""Trackers of the ``tracker`` group.

``library`` lists them, ``variable`` tells them where a run belongs, and ``callback`` adds what
transformers' own callbacks leave out: the frozen config, tags, the group, one run for all starts.
"""
