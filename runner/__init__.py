"""A declarative experiment runner for post-training language models.

``__main__`` reads the command line, ``config`` composes it, ``validate`` checks it, ``run`` lays its folder, ``launch``
starts its processes, ``command`` holds the verbs and ``training`` builds and trains from the parts: ``dataset``,
``model``, ``reward``, ``metric`` and their like. Nothing is imported here.
"""
