"""Writes the model of a finished run for others, and uploads it where a repository is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command import CommandLine, read_options
from runner.errors import ConfigError, EnvironmentFault, Fault, FolderError
from runner.io.files import display_path
from runner.run.record import check_finished, find_runs
from runner.run.seal import SEAL, check_sealed
from runner.training.export import export

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoUrl


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


def open_repository(name: str, private: bool = True) -> RepoUrl:
    """The repository of this name on the hub, which is made where it is not there."""
    fix = "hf auth login, then the same words again"
    return _ask_hub(name, fix, lambda hub: hub.create_repo(name, private=private, exist_ok=True))


def push(folder: Path, repository: RepoUrl) -> None:
    """Upload an export."""
    name, fix = (
        repository.repo_id,
        f"hf auth login, then the same words again; {display_path(folder)} is whole",
    )
    _ask_hub(
        name,
        fix,
        lambda hub: hub.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=[SEAL]),
    )


def _ask_hub(name: str, fix: str, call: Callable[[HfApi], Any]) -> Any:
    from huggingface_hub import HfApi

    try:
        return call(HfApi())
    except Exception as error:  # whatever its HTTP library of the day raises
        text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise EnvironmentFault(Fault(f"push={name}", text, "a hub that takes it", fix)) from error
