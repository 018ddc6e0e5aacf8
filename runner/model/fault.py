"""Known failures of transformers, peft and the hub to load a model, translated into four beats.

Memory that runs out goes on as it was raised. What shows before loading is found in ``check``.
"""

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError, causes_of
from runner.schema.table import read_tables

KNOWN: list[dict[str, Any]] = read_tables(__file__)["known"]


@contextmanager
def translate_model_errors(path: str, revision: str | None = None, part: str = "model") -> Iterator[None]:
    """Inside, a known failure to load ``path`` is raised as an error with four beats."""
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        for known in KNOWN:
            kinds = tuple(map(pkgutil.resolve_name, known["kinds"]))
            for cause in causes_of(error):
                if isinstance(cause, kinds) and known.get("words", "") in str(cause):
                    values = {"path": path, "revision": revision, "message": str(cause).strip().split("\n")[0]}
                    values["kind"] = type(cause).__name__
                    beats = [known[beat].format(**values) for beat in ("found", "expected", "fix")]
                    blamed = EnvironmentFault if known.get("environment") else ConfigError
                    raise blamed(Fault(f"{part}.{known.get('key', 'path')}", *beats)) from error
        raise
