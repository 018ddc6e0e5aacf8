"""Writes the model of a finished run for others, and uploads it where a repository is named."""

from pathlib import Path

from runner.command import CommandLine
from runner.command._option import read_options
from runner.command._upload import open_repository, push
from runner.command.export_options import Options
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import display_path
from runner.run.record import check_finished, find_runs
from runner.run.seal import check_sealed
from runner.training.exported_model import export


def main(line: CommandLine) -> int:
    """Export the run that the command line names, and push it where a repository is named."""
    options = read_options(line, Options)
    (run,) = find_runs(line.runs, "export", 1, Path(options.output_root))
    check_finished(run, "export")
    if run.experiment.model.trusts_code and options.trust_remote_code is None:
        raise ConfigError(
            Fault(
                where="trust_remote_code",
                found="the base model brings code of its own",
                expected="the same word as for the run",
                fix="=true  (if you trust it), or =false",
            )
        )
    folder = run.folder / "model"
    if not folder.is_dir():
        raise FolderError(Fault(display_path(folder), "missing", "the model of a finished run"))
    check_sealed(folder)
    repository = None
    if options.push:
        # The hub is asked before the work.
        repository = open_repository(options.push, options.private)
    target = Path(options.to or run.folder / "export")
    is_trusted = bool(options.trust_remote_code)
    lines = export(run, target, options.dtype, options.license, is_trusted)
    print("\n".join(lines))
    print(f"export    {display_path(target)}")
    if repository:
        push(target, repository)
        print(f"pushed    {repository}")
    return 0
