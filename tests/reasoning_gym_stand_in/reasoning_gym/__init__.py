"""A stand-in for the package reasoning-gym, of the same shape, with two tasks that count digits."""

from . import arithmetic  # noqa: F401
from .factory import create_dataset  # noqa: F401
