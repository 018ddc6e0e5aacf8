"""The upload of a model to a repository of the hub, private unless somebody says otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from runner.config.machines import rank
from runner.errors import EnvironmentFault, Fault
from runner.io.files import display_path
from runner.run import Run, add_notes
from runner.run.seal import SEAL

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoUrl

    from runner.training.callback.stop import StopRequest

Answer = TypeVar("Answer")


def open_repository(name: str, private: bool = True) -> RepoUrl:
    """The repository of this name on the hub, which is made where it is not there."""

    def create(hub: HfApi) -> RepoUrl:
        return hub.create_repo(name, private=private, exist_ok=True)

    return _ask_hub(name, "hf auth login, then the same words again", create)


def push(folder: Path, repository: RepoUrl) -> None:
    """Upload a folder without its seal."""
    name = repository.repo_id

    def upload(hub: HfApi) -> None:
        hub.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=[SEAL])

    fix = f"hf auth login, then the same words again; {display_path(folder)} is whole"
    _ask_hub(name, fix, upload)


def _ask_hub(name: str, fix: str, call: Callable[[HfApi], Answer]) -> Answer:
    """The answer of the hub to a call; EnvironmentFault for whatever its HTTP library raises."""
    from huggingface_hub import HfApi

    try:
        return call(HfApi())
    except Exception as error:
        message, _, _ = str(error).strip().partition("\n")
        raise EnvironmentFault(
            Fault(
                where=f"push={name}",
                found=f"{type(error).__name__}: {message}",
                expected="a hub that takes it",
                fix=fix,
            )
        ) from error


# --- The model of a training ----------------------------------------------------------------------
def open_run_repository(run: Run) -> RepoUrl | None:
    """The repository for the ``model/`` of a run; None where ``push_to_hub`` is not set.

    Only the first process opens it.
    """
    args = run.experiment.trainer.args
    if not args.get("push_to_hub") or rank():
        return None
    try:
        return open_repository(_repository_name(run), private=not _is_public(run))
    except EnvironmentFault as error:
        where = "trainer.args.push_to_hub"
        fix = f"hf auth login, then the same words again, or {where}=false"
        raise EnvironmentFault(replace(error.faults[0], where=where, fix=fix)) from error


def push_run(run: Run, stop: StopRequest) -> None:
    """Upload the ``model/`` of a run where ``push_to_hub`` is set; note it where that fails."""
    try:
        repository = open_run_repository(run)
        if repository:
            push(run.model, repository)
            print(f"pushed to {repository}")
    except EnvironmentFault as error:
        # A signal makes an upload fail, too.
        if stop.number is not None:
            raise stop.error() from error
        _note_failed_push(run, error)


def _note_failed_push(run: Run, error: EnvironmentFault) -> None:
    """Note in the run that its upload failed, with the command that repeats it."""
    name = _repository_name(run)
    if "/" not in name:
        name = f"<your account>/{name}"
    fix = f"python -m runner export {shlex.quote(str(run))} push={name}"
    if _is_public(run):
        fix += " private=false"
    if run.experiment.model.trusts_code:
        fix += " trust_remote_code=true"
    fault = replace(error.faults[0], where="trainer.args.push_to_hub", fix=fix)
    add_notes(run, [f"the run is finished, but its model was not pushed\n{fault}"])


def _repository_name(run: Run) -> str:
    name = run.experiment.trainer.args.get("hub_model_id") or run.folder.parent.name
    return name


def _is_public(run: Run) -> bool:
    return run.experiment.trainer.args.get("hub_private_repo") is False
