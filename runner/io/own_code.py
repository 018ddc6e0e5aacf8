"""Files of the user's own, as opposed to those of the runner, of Python, and of packages."""

import sysconfig
from pathlib import Path

# Folders of files that are not the user's own.
LIBRARY_FOLDERS = [
    Path(__file__).parent.parent,
    Path(sysconfig.get_path("stdlib")),
    Path(sysconfig.get_path("purelib")),
    Path(sysconfig.get_path("platlib")),
]


def is_own(file: str | Path) -> bool:
    """True for a file of the user's own: neither the runner's, nor Python's, nor a package's."""
    # The folders of packages below a user's home, and of the system below a virtual environment,
    # are known only by their names.
    path = Path(file)
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return not is_installed and not any(map(path.is_relative_to, LIBRARY_FOLDERS))
