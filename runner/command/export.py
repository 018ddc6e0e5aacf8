"""python -m runner export RUN [dtype=bfloat16] [to=FOLDER] [push=org/name]

Writes the model of a finished run into a folder that transformers and vLLM load by itself: weights as safetensors,
tokenizer, chat template, generation settings, and a model card with configuration, data, curves and results. An
adapter is merged into its base, and the largest difference that makes is told; weights that were trained whole are
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

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.command import is_yes, read_options
from runner.errors import ConfigError, EnvironmentFault, Fault, FolderError
from runner.files import SEAL, display_path, files_of, read_json, remove, seal, verify, write_text
from runner.generate.weights import check_sealed
from runner.report.card import Export, base_of, to_card
from runner.report.number import number
from runner.run.find import check_finished, find_runs
from runner.run.read import RunRecord
from runner.terminal import quiet

DTYPES = ("float32", "bfloat16", "float16")
OPTIONS = ("dtype", "to", "push", "private", "license", "trust_remote_code", "output_root")
LEFT = (SEAL, "training_args.bin", "README.md")  # of model/, what is the run's own


def main(line: Any) -> int:
    """Export the run that the command line names, and push it where that was asked for."""
    options = read_options(line.overrides, OPTIONS, "export")
    (run,) = find_runs(line.runs, "export", 1, Path(options.get("output_root", "outputs")))
    check_finished(run, "export")
    _check(run, options)
    private = is_yes(options, "private", default=True)
    folder = Path(options.get("to") or run.folder / "export")
    told = export(run, folder, options.get("dtype"), options.get("license"), is_yes(options, "trust_remote_code"))
    print("\n".join(told))
    print(f"export    {display_path(folder)}")
    if name := options.get("push"):
        print(f"pushed    {push(folder, name, private)}")
    return 0


def export(
    run: RunRecord, folder: Path, dtype: str | None = None, license: str | None = None, trust: bool = False
) -> list[str]:
    """Write the model of a run into a folder, whole or not at all, and return what there is to say of it."""
    _check_place(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as place:
        new = Path(place) / folder.name
        new.mkdir()
        written, notes = _write(run, new, dtype, trust)
        pictures = _copy_pictures(run, new)
        card = Export(written, _is_adapter(run), notes, license or license_of(base_of(run)))
        write_text(new / "README.md", to_card(run, card, pictures))
        seal(new)
        if folder.exists():
            remove(folder)
        new.rename(folder)
    return [f"weights   {note}" for note in notes]


def _check(run: RunRecord, options: Mapping[str, str]) -> None:
    """Raise with everything that keeps this run from being exported like this."""
    faults = []
    if options.get("dtype") not in (None, *DTYPES):
        faults.append(Fault("dtype", options["dtype"], ", ".join(DTYPES), "dtype=bfloat16"))
    name = options.get("push", "org/name")
    if name.count("/") != 1 or not all(name.split("/")):
        faults.append(Fault("push", name, "a repository", "push=org/name"))
    if (run.cfg.get("model") or {}).get("trust_remote_code") and options.get("trust_remote_code") is None:
        found, cure = "the base model brings code of its own", "trust_remote_code=true  (if you trust it), or =false"
        faults.append(Fault("trust_remote_code", found, "the same word as for the run", cure))
    if faults:
        raise ConfigError(faults)
    if not (run.folder / "model").is_dir():
        raise FolderError(Fault(display_path(run.folder / "model"), "missing", "the model of a finished run"))
    check_sealed(run.folder / "model")


def _check_place(folder: Path) -> None:
    """Raise FolderError where something is in the way that is not an export as it was written."""
    if folder.is_symlink() or (folder.exists() and not _is_replaceable(folder)):
        found = "a link" if folder.is_symlink() else "holds something else than an export as it was written"
        raise FolderError(
            Fault(display_path(folder), found, "no folder yet, or an earlier export", "to=<another folder>")
        )


def _is_replaceable(folder: Path) -> bool:
    return folder.is_dir() and (not any(folder.iterdir()) or verify(folder))


def _write(run: RunRecord, new: Path, dtype: str | None, trust: bool) -> tuple[str, list[str]]:
    """Copy the weights or write them anew; gives their precision, and what was done."""
    source = run.folder / "model"
    trained = str((run.cfg.get("model") or {}).get("dtype") or "auto")
    kept = str((read_json(source / "config.json") or {}).get("dtype") or "float32")
    if not _is_adapter(run) and dtype in (None, kept):
        return kept, _copy(source, new)
    from runner.model.merge import write_plain

    with quiet():
        head = str(run.cfg["trainer"].get("head", "lm"))
        asked = dtype or (trained if trained in DTYPES else None)
        written = write_plain(source, new, head=head, dtype=asked, trust=trust)
    largest = f"the largest logit is {number(written.largest, 3)}"
    notes = []
    if written.merged is not None:
        notes.append(f"merged into the base: no logit differs by more than {number(written.merged, 2)}; {largest}")
    if written.merged is None or written.dtype != "float32":
        notes.append(f"as {written.dtype}, read back: no logit differs by more than {number(written.rounded, 2)}")
    if run.cfg.get("quant"):
        notes.append("trained on a base of 4 or 8 bits and merged into the base as it was before that rounding")
    return written.dtype, notes


def _copy(source: Path, new: Path) -> list[str]:
    """Copy the files of a whole model, and see that the copies are the same; a critic beside it stays."""
    files = [path for path in sorted(source.iterdir()) if path.is_file() and path.name not in LEFT]
    unsafe = [path.name for path in files if path.suffix in (".bin", ".pt", ".pth", ".pkl")]
    if unsafe:
        raise FolderError(Fault(display_path(source), f"{unsafe[0]}, a pickle", "safetensors only", "train it again"))
    for path in files:
        shutil.copyfile(path, new / path.name)
    before = {name: digest for name, digest in files_of(source).items() if name in {path.name for path in files}}
    if files_of(new) != before:
        raise EnvironmentFault(
            Fault(display_path(new), "the copied files differ", "the same bytes", "try another disk")
        )
    size = sum(path.stat().st_size for path in files if path.suffix == ".safetensors")
    return [f"copied to the byte, {number(size / 1e6, 3)} MB"]


def _copy_pictures(run: RunRecord, new: Path) -> list[str]:
    pictures = sorted((run.folder / "plots").glob("*.png"))
    for path in pictures:
        (new / "plots").mkdir(exist_ok=True)
        shutil.copyfile(path, new / "plots" / path.name)
    return [f"plots/{path.name}" for path in pictures]


def _is_adapter(run: RunRecord) -> bool:
    return (run.folder / "model" / "adapter_config.json").is_file()


def license_of(base: str | None) -> str | None:
    """The licence of a base model, as the hub has it; None where it is not known or not reachable."""
    if base is None or os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return None
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):  # whatever its HTTP library of the day raises
        return getattr(HfApi().model_info(base, timeout=5).card_data, "license", None)
    return None


def push(folder: Path, name: str, private: bool = True) -> str:
    """Upload an export and return the address of its repository."""
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        repository = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository.repo_id, folder_path=folder, ignore_patterns=[SEAL])
    except Exception as error:  # whatever its HTTP library of the day raises
        text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        cure = f"hf auth login, then the same words again; {display_path(folder)} is whole"
        raise EnvironmentFault(Fault(f"push={name}", text, "a hub that takes it", cure)) from error
    return str(repository)
