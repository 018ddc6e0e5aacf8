"""Model of a finished run -> a folder that transformers and vLLM load by itself, whole or not at all."""

import contextlib
import shutil
import tempfile
from pathlib import Path

from runner.errors import EnvironmentFault, FolderError, fault
from runner.io.files import display_path, files_of, read_json, remove, write_text
from runner.io.hub import is_offline
from runner.io.terminal import quiet
from runner.report.card import base_of, to_card
from runner.run.read import RunRecord
from runner.run.seal import SEAL, damage_of, seal
from runner.schema.text import number

DTYPES = ("float32", "bfloat16", "float16")
LEFT = (SEAL, "training_args.bin", "README.md")  # of model/, what is the run's own


def export(
    run: RunRecord, folder: Path, dtype: str | None = None, license: str | None = None, trust: bool = False
) -> list[str]:
    """Write the model of a run into a folder, whole or not at all, and return what there is to say of it."""
    is_replaceable = folder.is_dir() and (not any(folder.iterdir()) or not damage_of(folder))
    if folder.is_symlink() or (folder.exists() and not is_replaceable):
        kind = "a link" if folder.is_symlink() else "" if folder.is_dir() else "a file"
        found = kind or "holds something else than an export as it was written"
        raise FolderError(fault("training.no_export", folder=display_path(folder), found=found))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as place:
        new = Path(place) / folder.name
        new.mkdir()
        written, notes = _write(run, new, dtype, trust)
        pictures = sorted((run.folder / "plots").glob("*.png"))
        for path in pictures:
            (new / "plots").mkdir(exist_ok=True)
            shutil.copyfile(path, new / "plots" / path.name)
        merged = "the adapter was merged into its base in float32"
        origin = merged if _is_adapter(run) else "the weights as they were trained"
        copy, license = [f"{origin}, written as {written}", *notes], license or license_of(base_of(run))
        write_text(new / "README.md", to_card(run, copy, license, [f"plots/{path.name}" for path in pictures]))
        seal(new)
        if folder.exists():
            remove(folder)
        new.rename(folder)
    return [f"weights   {note}" for note in notes]


def _write(run: RunRecord, new: Path, dtype: str | None, trust: bool) -> tuple[str, list[str]]:
    source = run.folder / "model"
    trained = str((run.cfg.get("model") or {}).get("dtype") or "auto")
    stored = str((read_json(source / "config.json") or {}).get("dtype") or "float32")
    if not _is_adapter(run) and dtype in (None, stored):
        return stored, _copy(source, new)
    from runner.model.merge import write_plain

    with quiet():
        head, wanted = str(run.cfg["trainer"].get("head", "lm")), dtype or (trained if trained in DTYPES else None)
        written = write_plain(source, new, head=head, dtype=wanted, trust=trust)
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
    files = [path for path in sorted(source.iterdir()) if path.is_file() and path.name not in LEFT]
    if unsafe := [path.name for path in files if path.suffix in (".bin", ".pt", ".pth", ".pkl")]:
        raise FolderError(fault("training.pickle", folder=display_path(source), file=unsafe[0]))
    for path in files:
        shutil.copyfile(path, new / path.name)
    if not files_of(new).items() <= files_of(source).items():
        raise EnvironmentFault(fault("training.other_bytes", folder=display_path(new)))
    size = sum(path.stat().st_size for path in files if path.suffix == ".safetensors")
    return [f"copied to the byte, {number(size / 1e6, 3)} MB"]


def _is_adapter(run: RunRecord) -> bool:
    return (run.folder / "model" / "adapter_config.json").is_file()


def license_of(base: str | None) -> str | None:
    """The licence of a base model, as the hub has it; None where it is not known or not reachable."""
    if base is None or is_offline():
        return None
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):  # whatever its HTTP library of the day raises
        return getattr(HfApi().model_info(base, timeout=5).card_data, "license", None)
    return None
