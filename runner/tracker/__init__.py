"""Trackers of the ``tracker`` group.

What each needs, sends and writes stands in ``schema.upstream.trackers``. ``variable`` tells them
where a run belongs, and ``callback`` adds what transformers' own callbacks leave out: the frozen
config, tags, the group, one run for all starts.
"""
