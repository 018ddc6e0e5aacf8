"""Rows behind an address (s3://, gs://, hf://, https:// and what else fsspec knows), copied into the cache.

The copy is read as any file of this machine is, so that its bytes are looked at first. It is known by what the other
side says of a file's version; another version is another copy. Nothing is fetched before a run loads its rows.
"""

import hashlib
import json
import os
import re
from glob import has_magic
from pathlib import Path

from runner.dataset.disk import READERS, Paths, suffix_of
from runner.errors import DataError, EnvironmentFault, describe, fault
from runner.io.distribution import to_install
from runner.io.files import hub_home

ADDRESS = re.compile(r"(?!runner:)([a-z][a-z0-9+.-]+)://")


def check_remote(path: Paths) -> bool:
    """True for an address, or a list with one; raises EnvironmentFault where the library for it is missing."""
    addresses = [found for one in ([path] if isinstance(path, str) else path) if (found := ADDRESS.match(one))]
    for address in addresses:
        from fsspec import available_protocols, get_filesystem_class

        protocol, where = address[1], address.string
        if protocol not in available_protocols():
            raise DataError(fault("dataset.unknown_protocol", where=where, protocol=protocol))
        try:
            get_filesystem_class(protocol)
        except ImportError as error:
            found = re.search(r"(?i)\binstall (\S+)|\"(\w+)\" to be installed", str(error))
            package = (found[1] or found[2]) if found else protocol
            fix = to_install(package)
            raise EnvironmentFault(fault("dataset.missing_library", address=where, package=package, fix=fix)) from None
    return bool(addresses)


def copy_here(path: Paths) -> Paths:
    """The path, or those of a list, with what is behind an address copied into this machine's cache, once."""
    if not isinstance(path, str):
        return [str(copy_here(one)) for one in path]
    if not check_remote(path):
        return path
    import fsspec

    try:
        there, inner = fsspec.url_to_fs(path)
        is_pattern = has_magic(inner)
        is_one = not is_pattern and there.isfile(inner)
        names = there.glob(inner) if is_pattern else [inner] if is_one else there.find(inner, maxdepth=2)
        if not (names := sorted(name for name in names if suffix_of(Path(name)) in READERS)):
            raise FileNotFoundError(path)
        versions = json.dumps([path, *((name, there.ukey(name)) for name in names)])
        folder = hub_home() / "runner" / "rows" / hashlib.sha256(versions.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            file = folder / (f"{number}-" * is_pattern + name.rpartition("/")[2])  # two may have the same name
            if not file.exists():
                print(f"fetch     {name} from {path.partition('://')[0]}", flush=True)
                part = folder / f".{file.name}.{os.urandom(8).hex()}"
                there.get_file(name, str(part))
                os.replace(part, file)
        return str(file if is_one else folder)
    except (FileNotFoundError, DataError):
        raise DataError(fault("dataset.no_rows_there", path=path)) from None
    except Exception as error:  # each library has its own, for a key that is missing as for a network that is
        raise EnvironmentFault(fault("dataset.unreachable", path=path, error=describe(error)[:200])) from error
