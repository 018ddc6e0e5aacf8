"""Writes the model of a finished run for others, and uploads it where a repository is named."""

from __future__ import annotations

from pathlib import Path

from runner.command import CommandLine, read_options
from runner.command._upload import open_repository, push
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import display_path
from runner.run.record import check_finished, find_runs
from runner.run.seal import check_sealed
from runner.training.export import export


def main(line: CommandLine) -> int:
    """Export the run that the command line names, and push it where a repository is named."""
    options = read_options(line.overrides, "export")
    (run,) = find_runs(line.runs, "export", 1, Path(options.get("output_root", "outputs")))
    check_finished(run, "export")
    if (run.cfg.get("model") or {}).get("trust_remote_code") and "trust_remote_code" not in options:
        raise ConfigError(
            Fault(
                where="trust_remote_code",
                found="the base model brings code of its own",
                expected="the same word as for the run",
                fix="=true  (if you trust it), or =false",
            )
        )
    if not (run.folder / "model").is_dir():
        raise FolderError(
            Fault(display_path(run.folder / "model"), "missing", "the model of a finished run")
        )
    check_sealed(run.folder / "model")
    private, name = options.get("private", True), options.get("push")
    repository = open_repository(name, private) if name else ""  # asked before the work
    folder = Path(options.get("to") or run.folder / "export")
    trusted = options.get("trust_remote_code", False)
    print("\n".join(export(run, folder, options.get("dtype"), options.get("license"), trusted)))
    print(f"export    {display_path(folder)}")
    if repository:
        push(folder, repository)
        print(f"pushed    {repository}")
    return 0
