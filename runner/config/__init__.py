"""Command line -> one composed, resolved, plain configuration.

``override`` reads the words, ``choice`` the options among them; ``composition`` has Hydra compose
them with the menu (``menu``) and the user's folders (``user_folder``, within ``limits``), and
``resolution`` makes plain values of that, whose short forms ``rows``, ``speed`` and ``batch`` write
out. ``experiment`` declares every key of ours, ``build`` makes objects of nodes, ``provenance``
tells where a value comes from, ``dialect`` knows the keys of other tools.
"""

from runner.config.composition import (
    compose,
    compose_unresolved,
    differences,
)
from runner.config.machines import rank, world_size
from runner.config.menu import read_menu, searched_folders
from runner.config.resolution import Composed, resolve
from runner.config.user_folder import use_folders

__all__ = [
    "Composed",
    "compose",
    "compose_unresolved",
    "differences",
    "rank",
    "read_menu",
    "resolve",
    "searched_folders",
    "use_folders",
    "world_size",
]
