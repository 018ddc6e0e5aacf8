"""Command line -> one composed, resolved, plain configuration.

``override`` reads the words, ``choice`` the options among them; ``composition`` has Hydra compose
them with the menu (``menu``) and the user's folders (``user_folder``, within ``limits``), and
``resolution`` makes plain values of that, whose short forms ``rows``, ``speed`` and ``batch`` write
out. ``experiment`` declares every key of ours, ``build`` makes objects of nodes, ``provenance``
tells where a value comes from, ``dialect`` knows the keys of other tools.
"""
