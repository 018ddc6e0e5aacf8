"""The folder that a command is typed in: the modules and the groups of configs that stand there."""

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.errors import EnvironmentFault, Fault
from runner.io.files import MENU

NO_FOLDER = "none"  # in place of a folder of --config-dir


def add_working_folder() -> None:
    """Have the user's own modules in the working folder found, as ``python -m`` does.

    A runner.py among them comes last, or whatever starts another Python would find it instead of
    this package. Raises EnvironmentFault if the folder was deleted meanwhile, and on a system that
    none of our commands works on.
    """
    # Runs of a sweep are forked, and nothing could stop them inside of this process.
    if not hasattr(os, "fork"):
        raise EnvironmentFault(
            Fault(
                where="system",
                found=f"{platform.system()}, which has no fork",
                expected="Linux or macOS",
                fix="wsl --install, and the same command in the terminal of that Linux",
            )
        )
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise EnvironmentFault(
            Fault(
                where="working folder",
                found="the folder that this shell is in was deleted",
                expected="a folder",
                fix="cd <an existing folder>",
            )
        ) from None
    if "" not in sys.path and folder not in sys.path:
        index = 0
        if os.path.exists("runner.py"):
            index = len(sys.path)
        sys.path.insert(index, folder)


def find_menu_here() -> Path | None:
    """``conf/`` in the working folder, where it holds options of groups and is not the menu itself.

    It counts as a folder of ``--config-dir``.
    """
    folder = Path("conf")
    if not folder.is_dir() or folder.resolve() == MENU.resolve():
        return None
    for file in folder.glob("*/*.yaml"):
        if (MENU / file.parent.name).is_dir():
            return folder
    return None


def searched_folders(typed: Sequence[Path]) -> list[Path]:
    """The user's folders that are searched: those of ``--config-dir``, or else the one found here.

    None are, where ``none`` was typed for a folder.
    """
    if list(map(str, typed)) == [NO_FOLDER]:
        return []
    here = find_menu_here()
    if here is not None and not typed:
        return [here]
    return list(typed)
