"""Two tasks."""

from . import chain_sum, gcd  # noqa: F401
