"""The command where a stand-in for vLLM is, which takes half a minute to start."""

import importlib
import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
STAND_IN = {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS / "vllm_stand_in")])}


def with_vllm(words: list[str]) -> int:
    """The command where vLLM is, in a process that was forked from one without it: a ``door``.

    TRL looks for it as it is imported.
    """
    from runner.__main__ import main

    for name in ("vllm_client", "vllm_generation"):
        module = sys.modules.get(f"trl.generation.{name}")
        if module:
            importlib.reload(module)
    return main(words)
