"""Model of a finished run -> a folder for others.

transformers and vLLM load it by itself, or llama.cpp and Ollama where it holds a GGUF file.
"""

import contextlib
import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runner.config.run_name import ascii_spelt, folder_name
from runner.errors import EnvironmentFault, Fault, FolderError
from runner.io.files import display_path, files_of, read_json, remove, write_text
from runner.io.hub import is_offline
from runner.io.temporary import uncollected
from runner.io.terminal import quiet
from runner.model.architecture import modality_of
from runner.model.gguf import NAMES, LlamaCpp, write_gguf
from runner.report.card import base_of, to_card
from runner.run.record import RunRecord
from runner.run.seal import SEAL, damage_of, seal
from runner.schema.literal import number

DTYPES = ("float32", "bfloat16", "float16")
NOT_COPIED = (SEAL, "training_args.bin", "README.md")  # files of model/ that are the run's own
PICKLES = (".bin", ".pt", ".pth", ".pkl")


@dataclass(frozen=True)
class ExportedModel:
    """The dtype of an exported model, and notes on how it differs from the trained one."""

    dtype: str
    notes: list[str]


def export(
    run: RunRecord,
    folder: Path,
    dtype: str | None = None,
    license: str | None = None,
    trust: bool = False,
    llama_cpp: LlamaCpp | None = None,
    is_fp8: bool = False,
) -> list[str]:
    """Write the model of a run into a folder, whole or not at all; return lines to print.

    With the tools of ``llama_cpp`` it is one GGUF file with a Modelfile; with ``is_fp8`` the
    weights of linear layers have 8 bits.
    """
    is_replaceable = folder.is_dir() and (not any(folder.iterdir()) or not damage_of(folder))
    if folder.is_symlink() or (folder.exists() and not is_replaceable):
        raise FolderError(_taken(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as parent:
        new = Path(parent) / folder.name
        new.mkdir()
        if llama_cpp:
            written = _write_gguf(run, new, Path(parent) / "plain", dtype, trust, llama_cpp)
        elif is_fp8:
            written = _write_fp8(run, new, Path(parent) / "plain", dtype or "bfloat16", trust)
        else:
            written = _write(run, new, dtype, trust)
        pictures = []
        for path in sorted((run.folder / "plots").glob("*.png")):
            (new / "plots").mkdir(exist_ok=True)
            shutil.copyfile(path, new / "plots" / path.name)
            pictures.append(f"plots/{path.name}")
        origin = "the weights as they were trained"
        if _is_adapter(run):
            origin = "the adapter was merged into its base in float32"
        facts = [f"{origin}, written as {written.dtype}", *written.notes]
        license = license or license_of(base_of(run))
        with uncollected():
            card = to_card(run, facts, license, pictures)
        write_text(new / "README.md", card)
        seal(new)
        if folder.exists():
            remove(folder)
        new.rename(folder)
    return [f"weights   {note}" for note in written.notes]


def _taken(folder: Path) -> Fault:
    """The fault of a folder that an export may not replace."""
    found = "a file"
    if folder.is_symlink():
        found = "a link"
    elif folder.is_dir():
        found = "contains something other than an unchanged export"
    return Fault(
        where=display_path(folder),
        found=found,
        expected="no folder yet, or an earlier export",
        fix="to=<another folder>",
    )


def _write(run: RunRecord, new: Path, dtype: str | None, trust: bool) -> ExportedModel:
    """Write the model of a run into an empty folder: a copy, or merged and converted."""
    source = run.folder / "model"
    config = read_json(source / "config.json") or {}
    stored = str(config.get("dtype") or "float32")
    if not _is_adapter(run) and dtype in (None, stored):
        return ExportedModel(stored, [_copy(source, new)])
    with uncollected():
        from runner.model.merge import write_plain

    trained = str(run.experiment.model.node.get("dtype") or "auto")
    if dtype is None and trained in DTYPES:
        dtype = trained
    head = run.experiment.trainer.head
    # Models are freed without a search for garbage, which would look at everything imported.
    with quiet(), uncollected():
        written = write_plain(source, new, head=head, dtype=dtype, trust=trust)
    notes = []
    if written.merged is not None:
        notes.append(
            "merged into the base: no logit differs by more than "
            f"{number(written.merged, 2)}; the largest logit is {number(written.largest, 3)}"
        )
    if written.merged is None or written.dtype != "float32":
        notes.append(
            f"as {written.dtype}, read back: no logit differs by more than "
            f"{number(written.rounded, 2)}"
        )
    if run.experiment.quant:
        notes.append(
            "trained on a base of 4 or 8 bits and merged into the base as it was before that "
            "rounding"
        )
    return ExportedModel(written.dtype, notes)


def _write_gguf(
    run: RunRecord, new: Path, plain: Path, dtype: str | None, trust: bool, llama_cpp: LlamaCpp
) -> ExportedModel:
    """Write the model of a run into an empty folder as a GGUF file with a Modelfile.

    ``plain`` is a folder for the model as transformers loads it, which is needed only here.
    """
    plain.mkdir()
    is_full = NAMES.get(str(dtype), dtype) == "f32"
    written = _write(run, plain, "float32" if is_full else None, trust)
    if dtype is None:
        dtype = "bfloat16" if written.dtype == "bfloat16" else "float16"
    dtype = NAMES.get(dtype, dtype)
    from runner.model.load import load_tokenizer
    from runner.model.modelfile import adds_bos, write_modelfile

    name = model_name(run)
    weights = f"{name}-{dtype}.gguf"
    with quiet():
        tokenizer = load_tokenizer(str(plain), trust_remote_code=trust)
        template = write_modelfile(new, weights, name, tokenizer, plain / "generation_config.json")
        begins = adds_bos(tokenizer)
        write_gguf(plain, new / weights, dtype, llama_cpp, name=name, adds_bos=begins)
    megabytes = number((new / weights).stat().st_size / 1e6, 3)
    notes = [*written.notes, f"{weights} by llama.cpp's converter, {megabytes} MB", template]
    if modality_of(read_json(plain / "config.json") or {}):
        notes.append("only what reads text is in the file")
    return ExportedModel(dtype, notes)


def _write_fp8(run: RunRecord, new: Path, plain: Path, dtype: str, trust: bool) -> ExportedModel:
    """Write the model of a run into an empty folder with its linear layers in FP8.

    ``plain`` is a folder for the model without that rounding, which is needed only here. The rest
    has a dtype; vLLM reads FP8 beside float32 only with ``--dtype float32``.
    """
    for library in ("torchao", "torch.utils._pytree"):
        # As they are imported, they warn of cards that are not here.
        logging.getLogger(library).setLevel(logging.ERROR)
    plain.mkdir()
    written = _write(run, plain, dtype, trust)
    from runner.model.merge import write_fp8

    with quiet():
        rounded = write_fp8(plain, new, trust=trust)
    size = sum(file.stat().st_size for file in new.glob("*.safetensors"))
    megabytes = number(size / 1e6, 3)
    note = (
        f"linear layers in FP8, read back: no logit differs by more than "
        f"{number(rounded.rounded, 2)}; the largest logit is {number(rounded.largest, 3)}; "
        f"{megabytes} MB"
    )
    return ExportedModel(rounded.dtype, [*written.notes, note])


def model_name(run: RunRecord) -> str:
    """The name of the model of a run, in letters that files, shells and Ollama take."""
    return folder_name(run.folder.parent.name, ascii_spelt) or "model"


def _copy(source: Path, new: Path) -> str:
    """Copy the files of a model without the run's own, and compare them; returns a note on it."""
    files = []
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in NOT_COPIED:
            files.append(path)
    for path in files:
        if path.suffix in PICKLES:
            raise FolderError(
                Fault(
                    where=display_path(source),
                    found=f"{path.name}, a pickle",
                    expected="safetensors only",
                    fix="train it again",
                )
            )
    for path in files:
        shutil.copyfile(path, new / path.name)
    if not files_of(new).items() <= files_of(source).items():
        raise EnvironmentFault(
            Fault(
                where=display_path(new),
                found="the copied files differ",
                expected="the same bytes",
                fix="try another disk",
            )
        )
    size = sum(path.stat().st_size for path in files if path.suffix == ".safetensors")
    return f"copied to the byte, {number(size / 1e6, 3)} MB"


def _is_adapter(run: RunRecord) -> bool:
    return (run.folder / "model" / "adapter_config.json").is_file()


def license_of(base: str | None) -> str | None:
    """The licence of a base model on the hub; None where it is not known or not reachable."""
    if base is None or is_offline():
        return None
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):  # whatever its HTTP library of the day raises
        card = HfApi().model_info(base, timeout=5).card_data
        license: str | None = getattr(card, "license", None)
        return license
    return None
