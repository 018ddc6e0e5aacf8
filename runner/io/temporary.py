"""Attributes that are others for a while."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def temporarily(holder: object, **values: object) -> Iterator[None]:
    """Give an object other values of its attributes inside; behind it those of before are there again."""
    before = {name: getattr(holder, name) for name in values}
    try:
        for name, value in values.items():
            setattr(holder, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)
