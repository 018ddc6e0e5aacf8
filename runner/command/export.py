"""Writes the model of a finished run for others, and uploads it where a repository is named."""

import shlex
from pathlib import Path

from runner.command import CommandLine
from runner.command._option import read_options
from runner.command._upload import open_repository, push
from runner.command.export_options import Options
from runner.errors import ConfigError, Fault, FolderError, check_library
from runner.io.files import display_path
from runner.model.gguf import LlamaCpp, find_llama_cpp
from runner.run.record import RunRecord, check_finished, find_runs
from runner.run.seal import check_sealed
from runner.training.exported_model import DTYPES, export, model_name


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
    llama_cpp = _find_tools(options, run)
    folder = run.folder / "model"
    if not folder.is_dir():
        raise FolderError(
            Fault(
                where=display_path(folder),
                found="missing",
                expected="the model of a finished run",
            )
        )
    check_sealed(folder)
    repository = None
    if options.push:
        # The hub is asked before the work.
        repository = open_repository(options.push, options.private)
    name = "export"
    if options.format != "safetensors":
        name += f"-{options.format}"
    target = Path(options.to or run.folder / name)
    lines = export(
        run,
        target,
        options.dtype,
        options.license,
        trust=bool(options.trust_remote_code),
        llama_cpp=llama_cpp,
        is_fp8=options.format == "fp8",
    )
    print("\n".join(lines))
    print(f"export    {display_path(target)}")
    if llama_cpp:
        name = model_name(run)
        path = shlex.quote(display_path(target / "Modelfile"))
        print(f"ollama    ollama create {name} -f {path} && ollama run {name}")
    if repository:
        push(target, repository)
        print(f"pushed    {repository}")
    return 0


def _find_tools(options: Options, run: RunRecord) -> LlamaCpp | None:
    """The tools of llama.cpp where the options ask for its format.

    Raises ConfigError for a format or a type that this run cannot have, and EnvironmentFault where
    a package or a tool is missing.
    """
    where = f"format={options.format}"
    if options.format in ("awq", "gptq"):
        command = f"python -m runner export {shlex.quote(display_path(run.folder))}"
        raise ConfigError(
            Fault(
                where=where,
                found="export does not write it",
                expected="safetensors, gguf or fp8",
                fix=f"{command}, and then as runner/command/EXPORT.md says",
            )
        )
    if options.format != "safetensors" and run.experiment.trainer.head != "lm":
        raise ConfigError(
            Fault(
                where=where,
                found="a reward model",
                expected="a model that writes text",
                fix="leave format out: transformers loads that folder",
            )
        )
    if options.format == "gguf":
        return find_llama_cpp(options.dtype)
    if options.dtype not in (None, *DTYPES):
        raise ConfigError(
            Fault(
                where=f"dtype={options.dtype}",
                found="a type of GGUF files",
                expected=", ".join(DTYPES),
                fix=f"format=gguf dtype={options.dtype}",
            )
        )
    if options.format == "fp8":
        check_library("torchao", where)
    return None
