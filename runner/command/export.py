"""python -m runner export RUN [dtype=bfloat16] [to=FOLDER] [push=org/name]

Writes the model of a finished run into a folder that transformers and vLLM load by itself: weights as safetensors,
tokenizer, chat template, generation settings, and a model card with configuration, data, curves and results. An
adapter is merged into its base, and the largest difference that makes is printed; weights that were trained whole are
copied. A reward model is written with its score head, of PPO only the policy.

    dtype=bfloat16        float32, bfloat16 or float16; the default is model.dtype of the run
    to=FOLDER             where to; the default is <run>/export. An earlier export there is replaced, nothing else
    push=org/name         also upload it, to a private repository; never done without these words
    private=false         make that repository public
    license=apache-2.0    for the card; the default is that of the base model, where it can be found
    trust_remote_code=true    run the code that comes with the base model, if the run did
    output_root=outputs   where names and keys of runs are looked up
"""

from __future__ import annotations

from pathlib import Path

from runner.command import CommandLine
from runner.command._option import Option, read_options
from runner.errors import ConfigError, EnvironmentFault, Fault, FolderError
from runner.io.files import display_path
from runner.run.find import check_finished, find_runs
from runner.run.seal import SEAL, check_sealed
from runner.training.export import DTYPES, export

OPTIONS = {
    "dtype": Option(words=tuple(DTYPES)),
    **dict.fromkeys(("private", "trust_remote_code"), Option("bool")),
    "push": Option(parts="org/name"),
    **dict.fromkeys(("to", "license", "output_root"), Option()),
}


def main(line: CommandLine) -> int:
    """Export the run that the command line names, and push it where a repository is named."""
    options = read_options(line.overrides, OPTIONS, "export")
    (run,) = find_runs(line.runs, "export", 1, Path(options.get("output_root", "outputs")))
    check_finished(run, "export")
    if (run.cfg.get("model") or {}).get("trust_remote_code") and "trust_remote_code" not in options:
        found, fix = "the base model brings code of its own", "trust_remote_code=true  (if you trust it), or =false"
        raise ConfigError(Fault("trust_remote_code", found, "the same word as for the run", fix))
    if not (run.folder / "model").is_dir():
        raise FolderError(Fault(display_path(run.folder / "model"), "missing", "the model of a finished run"))
    check_sealed(run.folder / "model")
    private = options.get("private", True)
    folder = Path(options.get("to") or run.folder / "export")
    trusted = options.get("trust_remote_code", False)
    print("\n".join(export(run, folder, options.get("dtype"), options.get("license"), trusted)))
    print(f"export    {display_path(folder)}")
    if name := options.get("push"):
        print(f"pushed    {push(folder, name, private)}")
    return 0


def push(folder: Path, name: str, private: bool = True) -> str:
    """Upload an export and return the address of its repository."""
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        repository = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository.repo_id, folder_path=folder, ignore_patterns=[SEAL])
    except Exception as error:  # whatever its HTTP library of the day raises
        text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        fix = f"hf auth login, then the same words again; {display_path(folder)} is whole"
        raise EnvironmentFault(Fault(f"push={name}", text, "a hub that takes it", fix)) from error
    return str(repository)
