"""The entry point: a command or a key press, and the exit code. No torch here.

    python -m runner [VERB] [RUN ...] [key=value ...] [-m] [--dry-run] [--debug] [--config-dir DIR]

Without a verb it trains. Exit codes are those of ``errors``.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import TracebackType
from typing import Any

from runner.command._help import asked_verb, help_text
from runner.config.working_folder import add_working_folder, find_menu_here
from runner.errors import take_error_file
from runner.io.temporary import kept_uncollected, uncollected


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    take_error_file(words)
    sys.excepthook = _print_uncaught
    try:
        add_working_folder()
        # A key press must be quick, and does without most of what a command imports.
        if words[:1] == ["--shell-completion"]:
            with uncollected():
                completion = import_module("runner.command._completion")
                code: int = completion.answer_shell(words[1:])
            return code
        verb = asked_verb(words)
        if verb and find_menu_here() is None:
            print(help_text(verb))
            return 0
        dispatch = _import("runner.command._dispatch")
        line = dispatch.read_line(words)
        if not dispatch.is_one_training(line):
            code = dispatch.do_other(line)
            return code
        # Nothing has to be saved before the worker begins.
        with dispatch.watched():
            stages = _import("runner.launch.compose.stages")
            with kept_uncollected():
                runs = stages.compose_runs(line.overrides, line.folders)
            start_runs = _import("runner.launch.start_runs")
            code = start_runs.start_runs(runs, dry_run=line.dry_run, debug=line.debug)
        return code
    except KeyboardInterrupt:  # between two runs, where no worker listens
        return 130
    except Exception as error:
        with kept_uncollected():
            from runner.command._ending import print_end
            from runner.command._versions import blame_versions

            return print_end(blame_versions(error, words), words)
    finally:
        _flush_output()


def _import(name: str) -> Any:
    """A module of ours by its dotted name; what an import makes stays, so no garbage is sought."""
    with kept_uncollected():
        return import_module(name)


def _print_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught exception without secrets, by what no other end needs."""
    from runner.io.terminal import print_uncaught

    print_uncaught(kind, error, trace)


def _flush_output() -> None:
    """Write what is buffered, so that Python does not complain of a broken pipe as it ends."""
    # A shell, or the user's own code, may have closed it.
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        from runner.io.terminal import discard

        discard(sys.stdout.fileno())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    code = main()
    # Python would look through everything for garbage before it ends, which takes a fifth of a
    # short command's time. But what vLLM has frozen, triton's bindings would report as leaked.
    if "triton" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()
    sys.exit(code)
