"""Rows behind an address (s3://, gs://, hf://, https:// and what else fsspec knows), copied into the cache.

The copy is read as any file of this machine is, so that its bytes are looked at first. It is known by what the other
side says of a file's version; another version is another copy. Nothing is fetched before a run loads its rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from glob import has_magic
from pathlib import Path
from typing import Any

from runner.dataset.disk import CHOOSE, READABLE, Paths, is_readable
from runner.errors import DataError, EnvironmentFault, Fault
from runner.io.distribution import to_install
from runner.io.files import SHIPPED, hub_home

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://")


def is_remote(path: Paths) -> bool:
    """True for an address, or a list with one."""
    each = [path] if isinstance(path, str) else path
    return any(bool(ADDRESS.match(str(one))) and not str(one).startswith(SHIPPED) for one in each)


def check_remote(path: str) -> None:
    """Raise EnvironmentFault where the library for an address is missing, DataError where there is none for it."""
    from fsspec import available_protocols, get_filesystem_class

    protocol = path.partition("://")[0]
    if protocol not in available_protocols():
        raise DataError(
            Fault(path, f"{protocol}:// is unknown", "s3://, gs://, hf://, https:// or a path here", CHOOSE)
        )
    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        found = re.search(r"(?i)\binstall (\S+)|\"(\w+)\" to be installed", str(error))
        package = (found[1] or found[2]) if found else protocol
        fault = Fault("dataset.path", f"{path} needs {package}", f"the package {package}", to_install(package))
        raise EnvironmentFault(fault) from None


def copy_here(path: Paths) -> Paths:
    """The path, or those of a list, with what is behind an address in the cache of this machine."""
    if not isinstance(path, str):
        return [str(copy_here(one)) for one in path]
    if not is_remote(path):
        return path
    check_remote(path)
    import fsspec

    try:
        return _copied(path, *fsspec.url_to_fs(path))
    except (DataError, KeyboardInterrupt):
        raise
    except FileNotFoundError:
        raise DataError(Fault("dataset.path", f"there is nothing at {path}", READABLE, CHOOSE)) from None
    except Exception as error:  # each library has its own, for a key that is missing as for a network that is
        found = f"{path}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        fix = "the same command where it can be read, or dataset.path=<a copy here>"
        raise EnvironmentFault(Fault("dataset.path", found, "an address that can be read from here", fix)) from error


def _copied(path: str, there: Any, inner: str) -> str:
    """Copy a file, a folder or the files of a pattern, unless they are there, and return what they are here."""
    is_pattern = has_magic(inner)
    is_folder = not is_pattern and there.isdir(inner)
    places = [inner, f"{inner.rstrip('/')}/data"] if is_folder else []
    listed = [name for place in places if there.isdir(place) for name in there.ls(place, detail=False)]
    names = listed or (there.glob(inner) if is_pattern else [inner])
    if not (names := sorted(name for name in names if is_readable(name))):
        raise DataError(Fault("dataset.path", f"no rows at {path}", READABLE, CHOOSE))
    versions = json.dumps([path, *((name, there.ukey(name)) for name in names)])
    folder = hub_home() / "runner" / "rows" / hashlib.sha256(versions.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        own = name.rpartition("/")[2] if not is_pattern else f"{number}-{name.rpartition('/')[2]}"
        if not (file := folder / own).exists():
            print(f"fetch     {name} from {path.partition('://')[0]}", flush=True)
            part = folder / f".{own}.{os.urandom(8).hex()}"
            there.get_file(name, str(part))
            os.replace(part, file)
    return str(folder if is_folder or is_pattern else Path(folder) / names[0].rpartition("/")[2])
