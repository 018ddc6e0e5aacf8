"""The cases of ``bad_input`` as data.

The words typed, the files there, and the words of the answer.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import shlex
import shutil
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "runner" / "model" / "tiny"

Content = bytes | str | list | dict | Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """One command line with the files around it, its exit code, and words of the cause and of the
    fix.

    ``late`` is what can only be found behind the door, where torch and a failed run folder are in
    order; ``why`` says why a value can never be meant. Of good input, ``looks`` is only to be
    looked at, with no training behind.
    """

    kind: str
    name: str
    words: tuple[str, ...]
    code: int
    cause: str = ""
    fix: str = ""
    files: Mapping[str, Content] = field(default_factory=dict)
    why: str = ""
    late: bool = False
    looks: bool = False
    faults: bool = True
    cold: str = ""
    skip: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    enter: Callable[[], None] = lambda: None

    @property
    def told(self) -> list[tuple[str, str]]:
        return [("cause", self.cause), ("fix", self.fix)]

    def prepare(self, folder: Path) -> None:
        """Make the files of the case."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, content)

    def plain(self) -> Case:
        return self if self.looks else replace(self, words=(*self.words, "--dry-run"))

    def trained(self, words: tuple[str, ...]) -> Case:
        return replace(self, words=(*words, *self.words))


def write(path: Path, content: Content) -> None:
    """Write a file from bytes, text, JSON lines (a list) or JSON (a mapping), or let a function
    write it.
    """
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif isinstance(content, dict):
        path.write_text(json.dumps(content), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")


def bad(
    name: str,
    words: str,
    cause: str,
    fix: str,
    files: Mapping[str, Content] | None = None,
    **kwargs,
) -> Case:
    return Case(
        "",
        name,
        tuple(shlex.split(words)),
        kwargs.pop("code", 2),
        cause,
        fix,
        files or {},
        **kwargs,
    )


def good(name: str, words: str, files: Mapping[str, Content] | None = None, **kwargs) -> Case:
    return Case("good", name, tuple(shlex.split(words)), 0, files=files or {}, **kwargs)


# --- What the cases are made of -------------------------------------------------------------------

EXCHANGE = {"prompt": "1+1=", "completion": " 2"}
PAIR = {"prompt": "1+1=", "chosen": " 2", "rejected": " 3"}
ANSWER = {"role": "assistant", "content": "2"}
CHAT = {"messages": [{"role": "user", "content": "1+1?"}, ANSWER]}
LINE = json.dumps(EXCHANGE).encode() + b"\n"
QUESTION = json.dumps(
    {"prompt": "中国的首都是哪里？", "completion": "北京是一个很大的城市。"}, ensure_ascii=False
)
CHINESE = "".join(f"{QUESTION}\n" for _ in range(20))
FOUR = [EXCHANGE | {"prompt": f"{number}+1="} for number in range(4)]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614\nsize 12345\n"
IDS = [{"chosen_ids": [5, 6], "rejected_ids": [5, 7]} for _ in range(4)]
ASKED = [{"prompt": f"{number}+1="} for number in range(4)]
ROWS = "dataset=local dataset.path=rows.jsonl"
ROWS_PARQUET = "dataset=local dataset.path=rows.parquet"
CSV = "dataset=local dataset.path=rows.csv"
PAIRS = "trainer=dpo dataset=local dataset.path=rows.jsonl"
MODEL = "model=hub model.path=m"
GENERATION = "generation_config.json"
TOKENS = "tokenizer_config.json"
# A training that takes a second.
STEP = (
    "trainer.args.max_steps=1",
    "trainer.args.per_device_train_batch_size=2",
    "trainer.args.per_device_eval_batch_size=2",
    "metric=none",
)


def own(file: str, text: str) -> dict[str, Content]:
    """A config folder of the user's own with one file in it."""
    return {f"own/{file}": text}


OWN = "--config-dir own experiment=x"


def experiment(text: str, encoding: str = "utf-8") -> dict[str, Content]:
    return {"own/experiment/x.yaml": f"# @package _global_\n{text}".encode(encoding)}


SWEEP = "--config-dir own sweep=x"
TARGET = "callback: {{x: {{_target_: {}}}}}\n"


def sweep(text: str) -> dict[str, Content]:
    return own("sweep/x.yaml", f"# @package _global_\nhydra: {text}\n")


def doubling(count: int, again: str = ", /g/a{}@b") -> dict[str, Content]:
    """Options of a group of the user's own, each of which requests the next one, and does so
    ``again``.
    """
    files = {}
    for number in range(count):
        later = f"/g/a{number + 1}@a{again.format(number + 1)}"
        files |= own(f"g/a{number}.yaml", f"defaults: [{later}]\n")
    return files | own(f"g/a{count}.yaml", "v: 1\n")


def fan(count: int, keys: int) -> tuple[str, dict[str, Content]]:
    """A list of defaults that names so many files, and these, each with so many keys."""
    texts = {}
    for file in range(count):
        lines = [f"k{file}_{key}: 0\n" for key in range(keys)]
        texts[f"own/g/f{file}.yaml"] = "".join(lines)
    return f"[{', '.join(f'/g/f{file}@_global_' for file in range(count))}]", texts


MANY = fan(500, 1)
WIDE = fan(30, 900)
CHAIN = {name: f"{text}many: [{'0, ' * 300}]\n" for name, text in doubling(50, "").items()}


def model(change: Callable[[Path], None] | None = None) -> dict[str, Content]:
    """The shipped model in a folder ``m``, changed."""

    def make(folder: Path) -> None:
        shutil.copytree(TINY, folder)
        if change:
            change(folder)

    return {"m": make}


def edited(file: str, **changes) -> Callable[[Path], None]:
    """A change of a JSON file of a model; None takes a key out."""

    def edit(folder: Path) -> None:
        path = folder / file
        values = json.loads(path.read_text()) | changes
        path.write_text(
            json.dumps({key: value for key, value in values.items() if value is not None})
        )

    return edit


def literal(key: str, value: object, file: str = "config.json") -> Callable[[Path], None]:
    """A change of a value of a model, as it stands in the file."""

    def edit(folder: Path) -> None:
        path = folder / file
        values = json.loads(path.read_text()) if path.exists() else {}
        text = json.dumps(
            {name: value for name, value in values.items() if name != key} | {"last": 0}
        )
        path.write_text(text.replace('"last": 0', f'"{key}": {value}'))

    return edit


def replaced(file: str, content: Content) -> Callable[[Path], None]:
    return lambda folder: write(folder / file, content)


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(file: str, part: float) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: int(len(content) * part)])

    return do


def weights(change: Callable[[dict], dict]) -> Callable[[Path], None]:
    """A change of the weights, by their names."""

    def do(folder: Path) -> None:
        from safetensors.numpy import load_file, save_file

        path = folder / "model.safetensors"
        save_file(change(load_file(path)), path, {"format": "pt"})

    return do


def not_finite(config: dict) -> dict:
    name = next(name for name in config if "q_proj" in name)
    return config | {name: config[name] * float("inf")}


def without_layer(weights: dict) -> dict:
    return {name: weight for name, weight in weights.items() if ".layers.1." not in name}


def adapter(kind: str = "safetensors", **changes) -> dict[str, Content]:
    """An adapter in a folder ``a``, whose base is the shipped model in ``m``."""
    config = {
        "base_model_name_or_path": "m",
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
    } | changes
    return {
        "a/adapter_config.json": config,
        f"a/adapter_model.{kind}": b"\x02\0\0\0\0\0\0\0{}",
        **model(),
    }


def indexed(content: Content) -> Callable[[Path], None]:
    """Weights in several files, of which only the index is there."""

    def do(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        write(folder / "model.safetensors.index.json", content)

    return do


def as_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def turned(path: Path) -> None:
    """A parquet file with other bytes in the middle of its rows."""
    parquet(path)
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(byte ^ 0x5A for byte in data[4:60])
    path.write_bytes(data)


def endless(begin: bytes, opened: Callable = open, count: int = 40) -> Callable[[Path], None]:
    """So many MB in a line."""

    def make(path: Path) -> None:
        with opened(path, "wb") as file:
            file.write(begin)
            file.writelines([b"x" * (1 << 20)] * count)

    return make


def counted(value: str) -> str:
    return LINE.decode().replace("}", f', "n": {value}}}')


def billion(path: Path) -> None:
    """The same row again and again, which parquet writes once."""
    import pyarrow
    from pyarrow import parquet

    column = pyarrow.DictionaryArray.from_arrays(
        pyarrow.repeat(pyarrow.scalar(0, pyarrow.int8()), 10**7), ["a"]
    )
    table = pyarrow.table({"prompt": column, "completion": column})
    with parquet.ParquetWriter(path, table.schema) as file:
        for _ in range(100):
            file.write_table(table, row_group_size=10**7)


def wide(path: Path) -> None:
    """A value of 50 MB, written once for many rows."""
    import pyarrow
    from pyarrow import parquet

    column = pyarrow.DictionaryArray.from_arrays([0] * 999, ["a" * (50 << 20)])
    parquet.write_table(
        pyarrow.table({"prompt": column, "completion": ["a"] * 999}), path, compression="zstd"
    )


def hollow(path: Path) -> None:
    """A file of 3 GB that takes no room."""
    path.touch()
    os.truncate(path, 3 << 30)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir()


def locked(content: Content, mode: int = 0) -> Callable[[Path], None]:
    """A file that nobody may read."""

    def make(path: Path) -> None:
        write(path, content)
        path.chmod(mode)

    return make


def powerless() -> None:
    """Give up root's rights over other people's files, for this process and its children."""
    header = struct.pack("<Ii", 0x20080522, 0)
    data = struct.pack("<6I", 0, 0, 0, 0, 0, 0)
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def package(name: str, version: str) -> dict[str, Content]:
    """An installed package that hides the real one from importlib.metadata."""
    return {
        f"{name}-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    }


LINUX = "" if sys.platform == "linux" else "needs Linux"


def lacking(name: str) -> Callable[[], None]:
    """Pretend that a library is not installed."""
    return lambda: sys.modules.update({name: None})


# --- Config: syntax and keys ----------------------------------------------------------------------

SYNTAX = [
    bad("tab in yaml", OWN, "x.yaml:3", "mend the line", experiment("trainer:\n\targs: {}\n")),
    bad(
        "broken indentation",
        OWN,
        "x.yaml:4",
        "mend the line",
        experiment("trainer:\n  args: {}\n beta: 1\n"),
    ),
    bad("unclosed bracket", OWN, "x.yaml:3", "mend the line", experiment("seed: [1\n")),
    bad("duplicate key", OWN, "duplicate key seed", "delete one", experiment("seed: 1\nseed: 2\n")),
    bad("top-level list", OWN, "a list", "key: value", own("experiment/x.yaml", "- seed: 1\n")),
    bad("top-level text", OWN, "text", "key: value", own("experiment/x.yaml", "hello\n")),
    bad(
        "python object tag",
        OWN,
        "python/object",
        "x.yaml",
        experiment("seed: !!python/object/apply:os.getpid []\n"),
    ),
    bad(
        "yaml that is not UTF-8",
        OWN,
        "UTF-8",
        "iconv",
        {"own/experiment/x.yaml": b"# @package _global_\nname: caf\xe9\n"},
    ),
    bad("yaml in UTF-16", OWN, "UTF-16", "iconv", experiment("seed: 1\n", "utf-16")),
    bad("null byte in yaml", OWN, "x.yaml", "mend", experiment("name: a\0b\n")),
    bad(
        "two documents in one file", OWN, "x.yaml:3", "mend", experiment("seed: 1\n---\nseed: 2\n")
    ),
    bad(
        "yaml that is a folder",
        OWN,
        "no option 'x'",
        "experiment=",
        {"own/experiment/x.yaml": folder},
    ),
    bad(
        "yaml nested 3000 deep",
        OWN,
        "x.yaml",
        "deep",
        experiment("seed: " + "[" * 3000 + "]" * 3000 + "\n"),
    ),
    bad("a 5000-digit integer", f"seed={'9' * 5000}", "seed", "seed="),
    bad(
        "a 5000-digit integer in yaml",
        OWN,
        "5000 digits",
        "quotes",
        experiment(f"seed: {'9' * 5000}\n"),
    ),
    bad(
        "a number with a leading 0",
        OWN,
        "010, which YAML reads as 8",
        "'010'",
        experiment("seed: 010\n"),
    ),
    bad("a negative number in eights", OWN, "x.yaml:2", "'-017'", experiment("seed: -017\n")),
    bad(
        "a name with leading 0",
        OWN,
        "012, which YAML reads as 10",
        "'012'",
        experiment("name: 012\n"),
    ),
    bad(
        "a number with colons",
        OWN,
        "1:30, which YAML reads as 90",
        "'1:30'",
        experiment("seed: 1:30\n"),
    ),
    bad(
        "a time in a list",
        OWN,
        "1:02:03",
        "3723",
        experiment("dataset: {columns: {prompt: [a, 1:02:03]}}\n"),
    ),
    bad("interpolation of nothing", "name='${nope}'", "nope", "leave name out"),
    bad(
        "interpolation in a circle",
        "name='${output_root}' output_root='${name}'",
        "circle",
        "leave name out",
    ),
    bad("unknown resolver", "name='${what:1}'", "what", "leave name out"),
    bad(
        "variable that is not set",
        "name='${oc.env:NOT_SET_ANYWHERE}'",
        "NOT_SET_ANYWHERE",
        "export NOT_SET_ANYWHERE",
    ),
    bad("mandatory value missing", "model=hub", "model.path", "model.path="),
    bad(
        "group that is missing in defaults",
        OWN,
        "nowhere",
        "x.yaml",
        experiment("defaults:\n  - nowhere: x\n"),
    ),
    bad(
        "option that is missing in defaults",
        OWN,
        "peft/nothing",
        "peft=",
        experiment("defaults:\n  - override /peft: nothing\n"),
    ),
    bad(
        "defaults that are no list", OWN, "defaults: text", "x.yaml", experiment("defaults: text\n")
    ),
    bad(
        "defaults with a number",
        OWN,
        "defaults: 5",
        "x.yaml",
        experiment("defaults: [_self_, 5]\n"),
    ),
    bad("defaults with two keys", OWN, "a:b", "x.yaml", experiment("defaults: [{a: b, c: d}]\n")),
    bad("defaults with _self_ elsewhere", OWN, "_self_@", "", experiment("defaults: [_self_@x]\n")),
    bad(
        "defaults that double",
        OWN,
        "lead to",
        "fewer",
        experiment("defaults: [/g/a0]\n") | doubling(20),
    ),
    bad(
        "defaults of 500 files",
        OWN,
        "lead to more than",
        "fewer",
        experiment(f"defaults: {MANY[0]}\n") | MANY[1],
    ),
    bad(
        "defaults of large files",
        OWN,
        "lead to more than",
        "fewer",
        experiment(f"defaults: {WIDE[0]}\n") | WIDE[1],
    ),
    bad(
        "defaults of a chain of large files",
        OWN,
        "lead to more",
        "fewer",
        experiment("defaults: [/g/a0]\n") | CHAIN,
    ),
    bad(
        "defaults 300 deep",
        OWN,
        "g/a64",
        "mend",
        experiment("defaults: [/g/a0]\n") | doubling(300, ""),
    ),
    bad(
        "defaults in a circle beside a pipe",
        OWN,
        "g/a -> g/a",
        "mend",
        experiment("defaults: [/g/a]\n")
        | own("g/a.yaml", "defaults: [a]\n")
        | {"own/g/b.yaml": fifo},
    ),
    bad(
        "comment like a header",
        OWN,
        "Too many",
        "in front",
        own("experiment/x.yaml", "# @package _global_ all\n"),
    ),
    bad("sweep whose axes are a list", SWEEP, "sweep/x", "", sweep("{sweeper: {params: [a]}}")),
    bad(
        "sweep without a sweeper",
        SWEEP,
        "no hydra.sweeper.params",
        "params",
        sweep("{sweeper: null}"),
    ),
    bad("sweep without hydra", SWEEP, "hydra.", "leave it out", sweep("null")),
    bad(
        "sweep of glob",
        SWEEP,
        "not glob()",
        "leave seed out",
        sweep("{sweeper: {params: {seed: glob(*)}}}"),
    ),
    bad("no sweeper", "-m seed=1,2 hydra/sweeper=null", "NoneType", ""),
    bad(
        "target of 40,000 letters",
        OWN,
        "a dotted name",
        "_target_=",
        experiment(TARGET.format("a." * 20_000 + "b")),
    ),
    bad(
        "part with a name of signs",
        OWN,
        "'metric.a\\x1b",
        "leave",
        experiment('metric: {"a\\e": {_target_: x}}'),
    ),
    bad(
        "output_root of signs",
        OWN,
        "all of them visible",
        "output_root=",
        experiment('output_root: "out\\e[31m"'),
    ),
    bad("name of signs", OWN, "a plain folder name", "name=", experiment('name: "a\\u202eb"')),
    bad("option that is missing", "trainer=dpoo", "dpoo", "trainer=dpo"),
    bad("group that is misspelt", "trianer=dpo", "trianer", "trainer=dpo"),
    bad("verb that is misspelt", "optoins quant", "optoins", "options quant"),
    bad("flag that is unknown", "--verbose", "--verbose", "--debug"),
    bad("key without a value", "seed", "seed", "--help"),
    bad(
        "grammar that is broken",
        "dataset.columns={prompt:prompt",
        "dataset.columns",
        "dataset.columns=",
    ),
    bad("equals sign alone", "=3", "no key", "key="),
    bad("config folder that is missing", "--config-dir nowhere", "nowhere", "--config-dir"),
    bad("config folder that is a file", "--config-dir own", "own", "--config-dir", {"own": "x"}),
    bad(
        "sweep of a million",
        "-m seed=range(1000) learning_rate=range(1,1001)",
        "1,000,000 jobs",
        "fewer",
    ),
    bad("sweep of nothing", "-m 'seed=choice()'", "seed", "leave seed out"),
    bad("sweep without -m", "seed=1,2", "several values", "-m"),
    bad("same run twice in a sweep", "-m seed=1,1", "twice", "once"),
    bad("target that may not run", "callback.x._target_=os.system", "os.system", "", faults=False),
    bad(
        "parts in a list",
        "'++callback=[{_target_: runner.training.callback.Samples}]'",
        "[{_target_",
        "callback.samples._target_=runner.training.callback.Samples",
    ),
    bad(
        "target that does not exist",
        "callback.x._target_=trl.Nope",
        "trl.Nope",
        "callback.x._target_=",
    ),
    bad(
        "field that is misspelt",
        "trainer.args.lerning_rate=1",
        "lerning_rate",
        "trainer.args.learning_rate=1",
    ),
    bad("field of another trainer", "trainer.args.beta=0.1", "exists for", "leave beta out"),
    bad(
        "value nobody reads",
        "trainer=sft kl_coef=0.1",
        "nothing in this configuration reads it",
        "leave kl_coef out",
    ),
    bad("text for a mapping", "dataset.split=train", "dataset.split", "dataset.split"),
    bad("list for a number", "seed=[1]", "seed", "seed=1"),
    bad(
        "yes for a word",
        OWN,
        "true",
        "eval_strategy=",
        experiment("trainer: {args: {eval_strategy: yes}}\n"),
    ),
    bad("bytes that are no text", "name=caf\udce9", "name", "name="),
    bad("stage of nothing", OWN, "stages", "stages:", experiment("stages: []\n")),
    bad(
        "run that is not there", "trainer=dpo 'model.path=${run:nothing}'", "nothing", "model.path="
    ),
    bad(
        "all faults at once",
        "seed=-1 trainer.args.max_steps=0 nmae=x peft=lora peft.r=0",
        "nmae",
        "peft.r=",
    ),
]

# --- Numbers --------------------------------------------------------------------------------------

A = "trainer.args."
NUMBER = [
    bad("learning rate 0", "learning_rate=0", "learning_rate", "leave learning_rate out"),
    bad(
        "learning rate negative", "learning_rate=-1e-6", "learning_rate", "leave learning_rate out"
    ),
    bad("learning rate infinite", "learning_rate=inf", "inf", "learning_rate="),
    bad("learning rate NaN", "learning_rate=nan", "nan", "learning_rate="),
    bad("learning rate as text", "learning_rate=fast", "the text fast", "leave learning_rate out"),
    bad("learning rate as quoted text", "\"learning_rate='1e-4'\"", "text", "learning_rate=0.0001"),
    bad("learning rate true", "learning_rate=true", "true", "leave learning_rate out"),
    bad(
        "batch of 0",
        f"{A}per_device_train_batch_size=0",
        "at least 1",
        f"{A}per_device_train_batch_size=",
    ),
    bad(
        "batch of 1.5",
        f"{A}per_device_train_batch_size=1.5",
        "whole number",
        f"{A}per_device_train_batch_size=",
    ),
    bad(
        "accumulation of 0",
        f"{A}gradient_accumulation_steps=0",
        "at least 1",
        f"{A}gradient_accumulation_steps=",
    ),
    bad("0 epochs", f"{A}max_steps=-1 {A}num_train_epochs=0", "above 0", f"{A}num_train_epochs="),
    bad(
        "infinite epochs",
        f"{A}max_steps=-1 {A}num_train_epochs=inf",
        "finite",
        f"{A}num_train_epochs=",
    ),
    bad("0 steps", f"{A}max_steps=0", "at least 1", f"{A}max_steps="),
    bad("steps negative", f"{A}max_steps=-5", "at least 1", f"{A}max_steps="),
    bad(
        "warm-up of all steps",
        f"{A}max_steps=5 {A}warmup_steps=5",
        "never be reached",
        f"{A}warmup_steps=",
    ),
    bad("warm-up negative", f"{A}warmup_steps=-1", "at least 0", f"{A}warmup_steps="),
    bad("length 0", f"{A}max_length=0", "at least 2", f"{A}max_length="),
    bad(
        "length negative",
        f"{A}max_length=-1",
        "at least 2",
        f"{A}max_length=",
        why="it drops the last tokens of each row",
    ),
    bad(
        "length beyond the model's positions",
        f"{A}max_length=4096",
        "1024",
        "tolerate.beyond_positions",
        why="what lies beyond was never trained; "
        "tolerate.beyond_positions=true for who extends a model",
    ),
    bad("save every 0 steps", f"{A}save_steps=0", "above 0", f"{A}save_steps="),
    bad("keep 0 checkpoints", f"{A}save_total_limit=0", "at least 1", f"{A}save_total_limit="),
    bad("log every 0 steps", f"{A}logging_steps=0", "above 0", f"{A}logging_steps="),
    bad("clip at a negative norm", f"{A}max_grad_norm=-1", "at least 0", f"{A}max_grad_norm="),
    bad("weight decay negative", f"{A}weight_decay=-0.1", "at least 0", f"{A}weight_decay="),
    bad("adam beta of 1", f"{A}adam_beta1=1", "below 1", f"{A}adam_beta1="),
    bad("DPO with beta 0", "trainer=dpo kl_coef=0", "above 0", "kl_coef="),
    bad(
        "DPO with beta negative",
        "trainer=dpo kl_coef=-0.1",
        "kl_coef",
        "kl_coef=",
        why="it learns the opposite",
    ),
    bad("DPO with typed beta negative", f"trainer=dpo {A}beta=-0.1", "above 0", f"{A}beta="),
    bad(
        "GRPO with beta negative",
        "trainer=grpo kl_coef=-0.1 reward=sorted_digits",
        "at least 0",
        "kl_coef=",
    ),
    bad("KTO with beta 0", "trainer=kto kl_coef=0", "above 0", "kl_coef="),
    bad("LoRA of rank 0", "peft=lora peft.r=0", "at least 1", "peft.r="),
    bad("LoRA of rank 1.5", "peft=lora peft.r=1.5", "whole number", "peft.r="),
    bad(
        "LoRA with alpha 0",
        "peft=lora peft.lora_alpha=0",
        "above 0",
        "peft.lora_alpha=",
        why="the adapter has no effect",
    ),
    bad("LoRA with dropout 1", "peft=lora peft.lora_dropout=1", "below 1", "peft.lora_dropout="),
    bad(
        "more layers to train than there are",
        "peft=freeze peft.layers=9",
        "has 2 layers",
        "peft.layers=",
    ),
    bad(
        "one completion a prompt",
        f"trainer=grpo reward=sorted_digits {A}num_generations=1",
        "at least 2",
        f"{A}num_generations=",
    ),
    bad(
        "groups that fill no batch",
        f"trainer=grpo reward=sorted_digits {A}per_device_train_batch_size=3",
        "whole groups",
        A,
    ),
    bad(
        "temperature 0",
        f"trainer=grpo reward=sorted_digits {A}temperature=0",
        "above 0",
        f"{A}temperature=",
    ),
    bad(
        "temperature negative",
        f"trainer=grpo reward=sorted_digits {A}temperature=-1",
        "above 0",
        f"{A}temperature=",
    ),
    bad(
        "completions of 0 tokens",
        f"trainer=grpo reward=sorted_digits {A}max_completion_length=0",
        "at least 1",
        f"{A}max_completion_length=",
    ),
    bad("top_p of 0", f"trainer=grpo reward=sorted_digits {A}top_p=0", "above 0", f"{A}top_p="),
    bad(
        "top_p of 1.5", f"trainer=grpo reward=sorted_digits {A}top_p=1.5", "at most 1", f"{A}top_p="
    ),
    bad(
        "clip range negative",
        f"trainer=grpo reward=sorted_digits {A}epsilon=-0.2",
        "above 0",
        f"{A}epsilon=",
    ),
    bad(
        "5000 loader workers",
        f"{A}dataloader_num_workers=5000",
        "at most",
        f"{A}dataloader_num_workers=",
        why="each is a process; no machine has a thousand cores to spare for one",
    ),
    bad(
        "prefetch without workers",
        f"{A}dataloader_prefetch_factor=2",
        "dataloader_num_workers",
        f"{A}dataloader_num_workers=",
    ),
    bad("seed negative", "seed=-1", "at least 0", "seed="),
    bad("seed as text", "seed=lucky", "whole number", "leave seed out"),
    bad("seed of 64 bits", "seed=99999999999", "at most", "seed="),
    bad("limit of 0 rows", "dataset.limit.train=0", "above 0", "dataset.limit.train="),
    bad(
        "limit of 1.5 rows",
        "dataset.limit.train=1.5",
        "whole number",
        "leave dataset.limit.train out",
    ),
    bad("limit as text", "dataset.limit.eval=some", "whole number", "leave dataset.limit.eval out"),
    bad("tolerating more than all", "tolerate.truncated=2", "at most 1", "tolerate.truncated="),
    bad("0 processes", "launcher.num_processes=0", "at least 1", "launcher.num_processes="),
    bad("0 jobs", "launcher.jobs=0", "at least 1", "launcher.jobs="),
    bad(
        "timeout negative",
        "launcher.timeout_seconds=-1",
        "above 0",
        "leave launcher.timeout_seconds out",
    ),
    bad(
        "focal loss with gamma negative",
        "loss=focal loss.gamma=-1",
        "at least 0",
        "loss.gamma=",
        why="it would weigh most what the model knows best",
    ),
    bad("smoothing above 1", "loss=label_smoothed loss.epsilon=2", "epsilon", "loss.epsilon="),
    bad("optimizer step of 0", "optimizer=adamw optimizer.lr=0", "above 0", "optimizer.lr="),
    bad(
        "patience of 0",
        "callback=early_stopping "
        f"callback.early_stopping.early_stopping_patience=0 {A}eval_strategy=steps",
        "at least 1",
        "patience=",
    ),
]

# --- Names and combinations -----------------------------------------------------------------------

COMBINATION = [
    bad(
        "weights for fewer rewards",
        f"trainer=grpo {A}reward_weights=[1,2]",
        "2 weights for 1 reward",
        f"{A}reward_w",
    ),
    bad("length that nothing follows in", f"{A}max_length=1", "at least 2", f"{A}max_length="),
    bad(
        "a length in one job of a sweep",
        f"-m {A}max_length=1,64",
        f"job {A}max_length=1",
        f"{A}max_length=",
    ),
    bad("optimizer that is unknown", f"{A}optim=adamv", "adamv", f"{A}optim="),
    bad(
        "schedule that is unknown",
        f"{A}lr_scheduler_type=cosin",
        "cosin",
        f"{A}lr_scheduler_type=cosine",
    ),
    bad(
        "loss that is unknown",
        f"trainer=dpo {A}loss_type=sigmod",
        "sigmod",
        f"{A}loss_type=sigmoid",
    ),
    bad("precision that is unknown", "model.dtype=fp32", "fp32", "model.dtype=float32"),
    bad(
        "attention that is unknown",
        "model.attention=fastest",
        "fastest",
        "model.attention=",
        late=True,
    ),
    bad("tracker that is unknown", "tracker.report_to=wandbb", "wandbb", "tracker.report_to=wandb"),
    bad(
        "two precisions",
        f"{A}bf16=true {A}fp16=true",
        "fp16",
        f"{A}fp16=false",
        why="one tensor has one type",
    ),
    bad(
        "evaluation without rows",
        f"{A}eval_strategy=steps dataset.split.eval=null",
        "held-out rows",
        "dataset.split.eval=",
    ),
    bad(
        "best model without evaluation",
        f"{A}load_best_model_at_end=true",
        "nothing is evaluated",
        f"{A}eval_strategy=steps",
    ),
    bad(
        "best model that is not saved",
        f"{A}load_best_model_at_end=true {A}eval_strategy=steps {A}eval_steps=3 {A}save_steps=4",
        "save_steps",
        f"{A}save_steps=",
        why="transformers refuses it when it is built",
    ),
    bad(
        "best model, saved by epoch",
        f"{A}load_best_model_at_end=true {A}eval_strategy=epoch {A}save_strategy=steps",
        "save_strategy",
        f"{A}save_strategy=epoch",
    ),
    bad(
        "early stopping without evaluation",
        "callback=early_stopping",
        "evaluat",
        f"{A}eval_strategy=steps",
    ),
    bad(
        "rows that do not fit the trainer",
        "trainer=dpo dataset=toy_demonstrations",
        "rows",
        "dataset=",
    ),
    bad(
        "GRPO without a reward",
        "trainer=grpo dataset=local dataset.path=rows.jsonl",
        "rewards",
        "reward=",
        {"rows.jsonl": FOUR},
    ),
    bad("reward for SFT", "trainer=sft reward=sorted_digits", "takes no reward", "reward=none"),
    bad("quantised and no adapter", "quant=4bit", "cannot be trained", "peft=lora"),
    bad(
        "4 and 8 bits",
        "quant=4bit peft=lora quant.load_in_8bit=true",
        "load_in_8bit",
        "quant.load_in",
    ),
    bad(
        "rows without tokens",
        'trainer=sft "trainer.args.dataset_kwargs={skip_prepare_dataset: true}"',
        "nothing tokenises",
        f"{A}dataset_kwargs=null",
    ),
    bad(
        "offloading on a CPU",
        f"trainer=sft {A}activation_offloading=true",
        "no GPU here",
        "=false",
        code=5,
    ),
    bad(
        "pairs of tokens for DPO",
        f"trainer=dpo {ROWS}",
        "tokenises rows itself",
        "trainer=reward",
        {"rows.jsonl": IDS},
    ),
    bad(
        "privileged context for nobody",
        f"trainer=sdft {ROWS}",
        "neither answers nor",
        "",
        {"rows.jsonl": ASKED},
    ),
    bad("GKD without a teacher", "trainer=gkd", "teacher", "trainer.teacher_model.path="),
    bad(
        "token weights for GRPO",
        "trainer=grpo reward=sorted_digits weight=answers",
        "takes none",
        "weight=none",
    ),
    bad(
        "stream without steps",
        f"{ROWS} dataset.streaming=true {A}max_steps=-1",
        "of unknown length",
        f"{A}max_steps=",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "push without being typed",
        OWN,
        "was not typed",
        f"{A}push_to_hub=true",
        experiment("trainer: {args: {push_to_hub: true}}\n"),
    ),
    bad("output folder of the trainer", f"{A}output_dir=x", "run folder", "output_root="),
    bad("epochs that steps overrule", f"{A}num_train_epochs=2", "overruled", f"{A}max_steps=-1"),
    bad(
        "packing without a length",
        f"{A}packing=true {A}max_length=null",
        "max_length",
        f"{A}max_length=",
        why="TRL refuses it when it is built",
    ),
    bad(
        "generation batch beside its parts",
        f"trainer=grpo reward=sorted_digits {A}generation_batch_size=32 {A}steps_per_generation=2",
        "steps_per_generation",
        f"{A}generation_batch_size=null",
    ),
    bad("two adapters", "peft=lora model.path=a", "adapter", "peft=none", adapter()),
    bad("merge of no adapter", "model.merge=true", "not an adapter", "model.merge=false"),
]

# --- Datasets -------------------------------------------------------------------------------------

DATASET = [
    bad(
        "file that is missing",
        ROWS,
        "there is no rows.jsonl",
        "dataset=row.jsonl",
        {"row.jsonl": FOUR},
    ),
    bad(
        "folder that is missing",
        "dataset=local dataset.path=nowhere/rows.jsonl",
        "no folder",
        "dataset=",
    ),
    bad("empty file", ROWS, "no rows", "dataset.path", {"rows.jsonl": b""}),
    bad("only blank lines", ROWS, "no rows", "dataset.path", {"rows.jsonl": b"\n\n \n"}),
    bad(
        "key twice",
        ROWS,
        "'prompt' twice",
        "sed -n 5p",
        {"rows.jsonl": LINE * 4 + b'{"prompt": "", ' + LINE[1:]},
    ),
    bad("first line null", ROWS, "rows.jsonl:1", "null", {"rows.jsonl": b"null\n" + LINE}),
    bad("only line null", ROWS, "rows.jsonl:1", "null", {"rows.jsonl": b"null\n"}),
    bad("later line null", ROWS, "rows.jsonl:3", "null", {"rows.jsonl": LINE * 2 + b"null\n"}),
    bad(
        "broken line", ROWS, "rows.jsonl:2", "line", {"rows.jsonl": LINE + b'{"prompt": \n' + LINE}
    ),
    bad("last line cut off", ROWS, "rows.jsonl:2", "line", {"rows.jsonl": LINE + LINE[:20]}),
    bad("line that is a list", ROWS, "rows.jsonl:1", "object", {"rows.jsonl": b"[1, 2]\n"}),
    bad("line that is text", ROWS, "rows.jsonl:1", "object", {"rows.jsonl": b'"hello"\n'}),
    bad(
        "single quotes",
        ROWS,
        "rows.jsonl:1",
        "json",
        {"rows.jsonl": b"{'prompt': 'a', 'completion': 'b'}\n"},
    ),
    bad(
        "latin-1",
        ROWS,
        "rows.jsonl:2",
        "iconv",
        {"rows.jsonl": LINE + '{"prompt": "é", "completion": "b"}\n'.encode("latin-1")},
    ),
    bad("GBK", ROWS, "gb18030", "iconv -f gb18030", {"rows.jsonl": CHINESE.encode("gbk")}),
    bad(
        "a letter that lacks a byte",
        ROWS,
        "rows.jsonl:1",
        "sed -n 1p",
        {"rows.jsonl": CHINESE.encode()[:20] + CHINESE.encode()[21:]},
    ),
    bad(
        "UTF-16", ROWS, "UTF-16", "iconv -f utf-16", {"rows.jsonl": LINE.decode().encode("utf-16")}
    ),
    bad(
        "UTF-32", ROWS, "UTF-32", "iconv -f utf-32", {"rows.jsonl": LINE.decode().encode("utf-32")}
    ),
    bad("git-lfs pointer", ROWS, "git-lfs", "git lfs pull", {"rows.jsonl": POINTER}),
    bad("web page", ROWS, "page", "download", {"rows.jsonl": b"<!DOCTYPE html>\n<html></html>\n"}),
    bad("gz that is none", f"{ROWS}.gz", "gzip", "rows.jsonl", {"rows.jsonl.gz": LINE}),
    bad(
        "gz that is cut",
        f"{ROWS}.gz",
        "gzip",
        "rows.jsonl",
        {"rows.jsonl.gz": gzip.compress(LINE * 500)[:-12]},
    ),
    bad("jsonl that is gzip", ROWS, "gzip", "rows.jsonl.gz", {"rows.jsonl": gzip.compress(LINE)}),
    bad(
        "jsonl that is parquet",
        ROWS,
        "parquet",
        "rows.parquet",
        {"rows.jsonl": lambda path: parquet(path)},
    ),
    bad("jsonl that is zip", ROWS, "zip", "unzip", {"rows.jsonl": b"PK\x03\x04rest"}),
    bad(
        "parquet that is cut",
        "dataset=local dataset.path=rows.parquet",
        "PAR1",
        "rows.parquet",
        {"rows.parquet": b"PAR1 and no more"},
    ),
    bad(
        "parquet that is empty",
        "dataset=local dataset.path=rows.parquet",
        "rows.parquet",
        "parquet",
        {"rows.parquet": b""},
    ),
    bad(
        "parquet with turned bytes", ROWS_PARQUET, "broken rows", "again", {"rows.parquet": turned}
    ),
    bad(
        "folder with a pipe",
        "dataset=local dataset.path=rows",
        "a pipe",
        "cat b.jsonl",
        {"rows/a.jsonl": FOUR, "rows/b.jsonl": fifo},
    ),
    bad(
        "20,000 columns",
        ROWS,
        "20,001 columns",
        "store what varies",
        {"rows.jsonl": [EXCHANGE | dict.fromkeys(map(str, range(19999)), 0)]},
    ),
    bad(
        "csv of 50,000 columns",
        "dataset=local dataset.path=rows.csv",
        "50,000 columns",
        "store what varies",
        {"rows.csv": f"{','.join(map(str, range(50000)))}\n{'1,' * 49999}1\n"},
    ),
    bad(
        "parquet with a broken footer",
        "dataset=local dataset.path=rows.parquet",
        "rows.parquet",
        "again",
        {"rows.parquet": b"PAR1" + b"x" * 40 + b"\x10\0\0\0PAR1"},
    ),
    bad(
        "csv with too many fields",
        "dataset=local dataset.path=rows.csv",
        "rows.csv:3",
        "quote",
        {"rows.csv": "prompt,completion\na,b\na,b,c\n"},
    ),
    bad(
        "csv with too few fields",
        "dataset=local dataset.path=rows.csv",
        "rows.csv:2",
        "quote",
        {"rows.csv": "prompt,completion\na\n"},
    ),
    bad(
        "csv with a column twice",
        "dataset=local dataset.path=rows.csv",
        "twice",
        "rename",
        {"rows.csv": "prompt,prompt\na,b\n"},
    ),
    bad(
        "csv of the header alone",
        "dataset=local dataset.path=rows.csv",
        "no rows",
        "dataset.path",
        {"rows.csv": "prompt,completion\n"},
    ),
    bad(
        "csv without a header",
        "dataset=local dataset.path=rows.csv",
        "columns",
        "dataset.columns",
        {"rows.csv": "1+1=,2\n1+2=,3\n"},
    ),
    bad(
        "csv with semicolons",
        "dataset=local dataset.path=rows.csv",
        "prompt;completion",
        "tsv",
        {"rows.csv": "prompt;completion\na;b\nc;d\n"},
    ),
    bad(
        "line without an end",
        ROWS,
        "rows.jsonl:1",
        "head -c 300",
        {"rows.jsonl": endless(b'{"prompt": "')},
    ),
    bad(
        "line without an end, packed",
        f"{ROWS}.gz",
        "rows.jsonl.gz:2",
        "gzip -dc",
        {"rows.jsonl.gz": endless(LINE + b'{"prompt": "', gzip.open)},
    ),
    bad(
        "csv line without an end",
        CSV,
        "rows.csv:2",
        "head -c",
        {"rows.csv": endless(b"prompt,completion\n")},
    ),
    bad(
        "json list in a line without an end",
        "dataset=local dataset.path=rows.json",
        "rows.json:1",
        "jq -c '.[]' rows.json > rows.jsonl",
        {"rows.json": endless(b'[{"prompt": "', count=280)},
    ),
    bad(
        "csv with an open quote",
        CSV,
        "rows.csv:3",
        "sed -n 3p",
        {"rows.csv": 'prompt,completion\na,b\na,"b\n' + "x,y\n" * 50},
    ),
    bad(
        "csv with an open quote far from the end",
        CSV,
        "rows.csv:2",
        "sed -n 2p",
        {"rows.csv": 'prompt,completion\na,"b\n' + "x,y\n" * 3_000_000},
    ),
    bad(
        "number that is none for a reader",
        ROWS,
        "number 1e999",
        "sed -n 1p",
        {"rows.jsonl": counted("1e999")},
    ),
    bad(
        "integer of 4,000 digits",
        ROWS,
        "number 99999",
        "sed -n 1p",
        {"rows.jsonl": counted("9" * 4000)},
    ),
    bad(
        "lists 100 deep",
        ROWS,
        "without an end",
        "sed -n 1p",
        {"rows.jsonl": counted("[" * 100 + "]" * 100)},
    ),
    bad(
        "parquet of a billion rows",
        ROWS_PARQUET,
        "rows in",
        "each row once",
        {"rows.parquet": billion},
    ),
    bad(
        "parquet with a row without an end",
        ROWS_PARQUET,
        "a row of more",
        "again",
        {"rows.parquet": wide},
    ),
    bad(
        "jsonl called csv",
        "dataset=local dataset.path=rows.csv",
        "json",
        "rows.jsonl",
        {"rows.csv": LINE * 3},
    ),
    bad(
        "object around the rows",
        "dataset=local dataset.path=rows.json",
        "keys data",
        "jq -c",
        {"rows.json": {"data": FOUR}},
    ),
    bad(
        "object around the rows, in a name with a blank",
        "dataset=local 'dataset.path=my rows.json'",
        "keys data",
        "then dataset.path='my rows-data.jsonl'",
        {"my rows.json": {"data": FOUR}},
    ),
    bad(
        "object around the rows, in a line", ROWS, "data", "jq -c", {"rows.jsonl": [{"data": FOUR}]}
    ),
    bad(
        "json array with null",
        "dataset=local dataset.path=rows.json",
        "row 1",
        "null",
        {"rows.json": json.dumps([EXCHANGE, None])},
    ),
    bad(
        "json array that is empty",
        "dataset=local dataset.path=rows.json",
        "no rows",
        "dataset.path",
        {"rows.json": "[]"},
    ),
    bad(
        "json array that is cut",
        "dataset=local dataset.path=rows.json",
        "rows.json:",
        "json",
        {"rows.json": json.dumps(FOUR)[:-10]},
    ),
    bad(
        "json array of numbers",
        "dataset=local dataset.path=rows.json",
        "row 0",
        "object",
        {"rows.json": "[1, 2]"},
    ),
    bad(
        "pickle",
        "dataset=local dataset.path=rows.pkl",
        "pickle",
        "jsonl",
        {"rows.pkl": b"\x80\x04N."},
    ),
    bad(
        "pickle called jsonl",
        ROWS,
        "pickle",
        "jsonl",
        {"rows.jsonl": b"\x80\x04\x95\x0f\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01s."},
    ),
    bad(
        "excel sheet",
        "dataset=local dataset.path=rows.xlsx",
        "another kind",
        "csv",
        {"rows.xlsx": b"PK\x03\x04"},
    ),
    bad(
        "folder without rows",
        "dataset=local dataset.path=rows",
        "an empty folder",
        "jsonl",
        {"rows": folder},
    ),
    bad(
        "folder of two kinds",
        "dataset=local dataset.path=rows",
        ".csv and .jsonl",
        "dataset=",
        {"rows/a.jsonl": FOUR, "rows/b.csv": "prompt,completion\na,b\n"},
    ),
    bad(
        "folder of save_to_disk",
        "dataset=local dataset.path=rows",
        "save_to_disk",
        "to_parquet",
        {"rows/state.json": {}},
    ),
    bad(
        "pattern that matches nothing",
        "dataset=local 'dataset.path=*.jsonl'",
        "no file matches",
        "dataset=",
    ),
    bad(
        "named pipe",
        ROWS,
        "pipe",
        "a file",
        {"rows.jsonl": fifo},
        why="it can be read once, and rows are read twice",
    ),
    bad("device", "dataset=local dataset.path=/dev/zero", "device", "a file", skip=LINUX),
    bad("null device", "dataset=local dataset.path=/dev/null", "device", "a file", skip=LINUX),
    bad("link in a circle", ROWS, "link", "rows.jsonl", {"rows.jsonl": link("rows.jsonl")}),
    bad("link to nothing", ROWS, "link", "gone.jsonl", {"rows.jsonl": link("gone.jsonl")}),
    bad(
        "file that may not be read",
        ROWS,
        "permission",
        "chmod",
        {"rows.jsonl": locked(FOUR)},
        enter=powerless,
        skip=LINUX,
    ),
    bad(
        "split that is missing",
        f"{ROWS} dataset.split.eval=test",
        "'test'",
        "dataset.split.eval=",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "slice that is broken",
        f"{ROWS} 'dataset.split.train=train[5'",
        "train[5",
        "train[",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "slice of nothing",
        f"{ROWS} 'dataset.split.train=train[10:]'",
        "no row",
        "dataset.split.train",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "split without train",
        f"{ROWS} dataset.split.train=null",
        "train",
        "dataset.split.train=train",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "column that is missing",
        f"{ROWS} dataset.columns.prompt=question",
        "question",
        "dataset.columns.prompt=",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "role that is unknown",
        f"{ROWS} dataset.columns.promt=prompt",
        "promt",
        "dataset.columns.prompt=prompt",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "columns that mean nothing",
        ROWS,
        "a, b",
        "dataset.columns",
        {"rows.jsonl": [{"a": "x", "b": "y"}]},
    ),
    bad(
        "exchanges for DPO",
        PAIRS,
        "prompt_completion",
        "dataset.columns.chosen",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "text for KTO",
        "trainer=kto dataset=local dataset.path=rows.jsonl",
        "text",
        "dataset.columns",
        {"rows.jsonl": [{"text": "a"}]},
    ),
    bad(
        "null content",
        ROWS,
        "rows.jsonl train row 1",
        "bad_rows=drop",
        {"rows.jsonl": [CHAT, {"messages": [{"role": "user", "content": None}, ANSWER]}]},
    ),
    bad(
        "null completion",
        ROWS,
        "row 1, completion",
        "bad_rows=drop",
        {"rows.jsonl": [EXCHANGE, {"prompt": "a", "completion": None}]},
    ),
    bad(
        "empty completion",
        ROWS,
        "row 1, completion",
        "bad_rows=drop",
        {"rows.jsonl": [EXCHANGE, {"prompt": "a", "completion": ""}]},
    ),
    bad(
        "blank text",
        ROWS,
        "row 0, text",
        "bad_rows=drop",
        {"rows.jsonl": [{"text": "  "}, {"text": "a"}]},
    ),
    bad("numbers for text", ROWS, "int", "mend them", {"rows.jsonl": [{"text": 3}]}),
    bad(
        "types mixed in a column",
        ROWS,
        "row 1",
        "bad_rows=drop",
        {"rows.jsonl": [{"text": "a"}, {"text": 3}]},
    ),
    bad(
        "text beside a conversation",
        PAIRS,
        "two texts or two",
        "mend them",
        {
            "rows.jsonl": [
                {"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]}
            ]
        },
    ),
    bad(
        "role that nobody has",
        ROWS,
        "alien",
        "mend them",
        {"rows.jsonl": [{"messages": [{"role": "alien", "content": "x"}]}]},
    ),
    bad(
        "turn without a role",
        ROWS,
        "role",
        "mend them",
        {"rows.jsonl": [{"messages": [{"content": "x"}]}]},
    ),
    bad(
        "conversation without turns", ROWS, "turns", "mend them", {"rows.jsonl": [{"messages": []}]}
    ),
    bad(
        "last turn of the user",
        ROWS,
        "ends with the user",
        "mend them",
        {
            "rows.jsonl": [
                {
                    "messages": [
                        {"role": "assistant", "content": "a"},
                        {"role": "user", "content": "x"},
                    ]
                }
            ]
        },
    ),
    bad(
        "pairs of equals alone",
        PAIRS,
        "chosen equals rejected",
        "another",
        {"rows.jsonl": [PAIR | {"rejected": " 2"}] * 3},
    ),
    bad(
        "pairs without a prompt",
        PAIRS,
        "no prompt",
        "dataset.columns.prompt",
        {"rows.jsonl": [{"chosen": "yes", "rejected": "no"}]},
    ),
    bad(
        "label that is no label",
        "trainer=kto dataset=local dataset.path=rows.jsonl",
        "label",
        "mend them",
        {"rows.jsonl": [EXCHANGE | {"label": "maybe"}]},
    ),
    bad(
        "form of rows as that of a trainer",
        f"{ROWS} trainer.form=text",
        "text",
        "trainer.form=demonstration",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "lone surrogate",
        ROWS,
        "surrogate",
        "rows.jsonl:1",
        {"rows.jsonl": b'{"prompt": "a \\ud800", "completion": "b"}\n'},
        why="it has no UTF-8, so no tokenizer takes it",
    ),
    bad(
        "system prompt for plain text",
        f"{ROWS} dataset.system=Hi",
        "plain text",
        "dataset.columns.input",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "form that is unknown",
        f"{ROWS} dataset.form=chat",
        "chat",
        "dataset.form=",
        {"rows.jsonl": FOUR},
    ),
    bad(
        "revision of a file",
        f"{ROWS} dataset.revision=main",
        "only the hub",
        "dataset.revision=null",
        {"rows.jsonl": FOUR},
    ),
    bad("no path", "dataset=local dataset.path=", "empty text", "dataset.path="),
    bad(
        "name that is no name",
        "dataset=hub 'dataset.path=what is this'",
        "what is this",
        "dataset=",
    ),
    bad(
        "no row left by a step",
        f"{ROWS} dataset.map._target_=mine.none allow=[mine]",
        "left out",
        "dataset.map",
        {"rows.jsonl": FOUR, "mine.py": "def none(row):\n    return None\n"},
        late=True,
    ),
    bad(
        "step that raises",
        f"{ROWS} dataset.map._target_=mine.fails allow=[mine]",
        "mine.py:2",
        "dataset.map",
        {"rows.jsonl": FOUR, "mine.py": "def fails(row):\n    return row['nope']\n"},
        late=True,
    ),
    bad(
        "fewer rows than a step needs",
        f"trainer=grpo reward=length {ROWS} {A}per_device_train_batch_size=8 {A}num_generations=2",
        "1 training row",
        "per_device_train_batch_size",
        {"rows.jsonl": [{"prompt": "a"}]},
        late=True,
    ),
    bad(
        "all rows beyond the length",
        f"{ROWS} {A}max_length=2",
        "longer",
        f"{A}max_length=",
        {"rows.jsonl": [EXCHANGE | {"prompt": "a b c d e f g h"}] * 4},
        late=True,
    ),
    bad(
        "mixture with a part that is missing",
        "dataset=mixture dataset.parts.sort.path=nowhere.jsonl",
        "nowhere.jsonl",
        "dataset.parts.sort.path=",
    ),
    bad(
        "mixture with a weight of 0",
        "dataset=mixture dataset.weights.sort=0",
        "above 0",
        "dataset.weights.sort=",
    ),
]

# --- Models, tokenizers, templates ----------------------------------------------------------------

MODELS = [
    bad("folder that is missing", "model=hub model.path=./nowhere", "no folder", "model.path="),
    bad("file instead of a folder", MODEL, "a file", "model.path=", {"m": "x"}),
    bad(
        "name that is no name",
        "model=hub 'model.path=what is this'",
        "neither a folder nor a name",
        "model.path=",
    ),
    bad(
        "folder without config.json",
        MODEL,
        "config.json",
        "model.path=",
        model(without("config.json")),
    ),
    bad(
        "config.json that is broken", MODEL, "config.json", "again", model(cut("config.json", 0.5))
    ),
    bad(
        "config.json that is empty",
        MODEL,
        "config.json",
        "again",
        model(replaced("config.json", b"")),
    ),
    bad(
        "config.json that is a list",
        MODEL,
        "config.json",
        "again",
        model(replaced("config.json", "[]")),
    ),
    bad(
        "config.json that is a pointer",
        MODEL,
        "git-lfs",
        "git lfs pull",
        model(replaced("config.json", POINTER)),
    ),
    bad(
        "config.json without model_type",
        MODEL,
        "model_type",
        "model.path=",
        model(edited("config.json", model_type=None)),
    ),
    bad(
        "architecture that is unknown",
        MODEL,
        "unheard_of",
        "pip install --upgrade transformers",
        model(edited("config.json", model_type="unheard_of")),
    ),
    bad(
        "architecture without a head",
        MODEL,
        "vit",
        "model.path=",
        model(edited("config.json", model_type="vit")),
        why="no trainer of texts can train it",
    ),
    bad(
        "weights that are missing",
        MODEL,
        "no weights",
        "model.path=",
        model(without("model.safetensors")),
    ),
    bad(
        "weights of 0 bytes",
        MODEL,
        "model.safetensors",
        "again",
        model(replaced("model.safetensors", b"")),
    ),
    bad("weights that are cut", MODEL, "truncated", "again", model(cut("model.safetensors", 0.5))),
    bad(
        "weights cut in the header",
        MODEL,
        "truncated",
        "again",
        model(cut("model.safetensors", 0.0005)),
    ),
    bad(
        "weights that are a pointer",
        MODEL,
        "git-lfs",
        "git lfs pull",
        model(replaced("model.safetensors", POINTER)),
    ),
    bad(
        "weights that are no weights",
        MODEL,
        "safetensors",
        "again",
        model(replaced("model.safetensors", b"\xff" * 100)),
    ),
    bad("weights as a pickle", MODEL, "pickle", "model.safetensors_only=false", model(as_bin)),
    bad("layers that are missing", MODEL, "lacks", "model.path=", model(weights(without_layer))),
    bad(
        "more layers in the config",
        MODEL,
        "lacks",
        "model.path=",
        model(edited("config.json", num_hidden_layers=4)),
    ),
    bad(
        "shapes of another config",
        MODEL,
        "shape",
        "model.path=",
        model(edited("config.json", intermediate_size=256)),
        late=True,
    ),
    bad(
        "shard that is missing",
        MODEL,
        "model-00002-of-00002.safetensors",
        "again",
        model(indexed({"weight_map": {"a": "model-00002-of-00002.safetensors"}})),
    ),
    bad("index that is broken", MODEL, "index.json", "again", model(indexed("{"))),
    bad(
        "index without names",
        MODEL,
        "no weight_map",
        "again",
        model(indexed({"weight_map": ["a"]})),
    ),
    bad(
        "layers without an end",
        MODEL,
        "is 1000000000",
        "model.path=",
        model(edited("config.json", num_hidden_layers=10**9)),
    ),
    bad(
        "layers below 0",
        MODEL,
        "is -1",
        "model.path=",
        model(edited("config.json", num_hidden_layers=-1)),
    ),
    *(
        bad(
            f"{key} of {value}",
            MODEL,
            f"config.json of m: {key} is",
            "model.path=",
            model(literal(key, value)),
        )
        for key, value in (
            ("hidden_size", "0"),
            ("hidden_size", "1e30"),
            ("hidden_size", '"8"'),
            ("num_hidden_layers", "2.5"),
            ("num_attention_heads", "true"),
            ("vocab_size", "1000000000000"),
            ("rms_norm_eps", "NaN"),
            ("rope_theta", '"x"'),
            ("initializer_range", "-Infinity"),
            ("max_position_embeddings", "-1"),
            ("attention_dropout", "7"),
            ("use_cache", '"yes"'),
            ("architectures", "3"),
            ("rope_scaling", '"much"'),
            ("rope_scaling", "[1]"),
            ("dtype", '"float31"'),
            ("torch_dtype", "16"),
            ("layer_types", "5"),
            ("quantization_config", "4"),
            ("auto_map", "1"),
        )
    ),
    bad(
        "heads that do not divide",
        MODEL,
        "num_key_value_heads",
        "model.path=",
        model(literal("num_key_value_heads", 3)),
    ),
    bad(
        "rope in the text of a model",
        MODEL,
        "rope_parameters.rope_theta is",
        "model.path=",
        model(literal("rope_parameters", '{"rope_type": "default", "rope_theta": "much"}')),
    ),
    bad(
        "rope of a kind that there is not",
        MODEL,
        "rope_scaling.rope_type is",
        "model.path=",
        model(literal("rope_scaling", '{"rope_type": "spiral", "factor": 2.0}')),
    ),
    bad(
        "heads of another size",
        MODEL,
        "q_proj.weight is",
        "model.path=",
        model(literal("head_dim", 8)),
    ),
    *(
        bad(
            f"{key} of {value}",
            MODEL,
            f"{key} is",
            "model.tokenizer.path=",
            model(literal(key, value, TOKENS)),
        )
        for key, value in (
            ("padding_side", '"middle"'),
            ("truncation_side", "1"),
            ("tokenizer_class", "7"),
            ("pad_token", "3"),
        )
    ),
    bad(
        "beams without an end",
        MODEL,
        "num_beams is",
        "model.path=",
        model(literal("num_beams", 10**9, GENERATION)),
    ),
    bad(
        "end that is text",
        MODEL,
        "eos_token_id is",
        "model.path=",
        model(literal("eos_token_id", '"x"', GENERATION)),
    ),
    bad(
        "length of no text",
        MODEL,
        "model_max_length is",
        "model.tokenizer.path=",
        model(literal("model_max_length", '"x"', TOKENS)),
    ),
    bad("adapter of rank 0", "model.path=a", "r is 0", "model.path=", adapter(r=0)),
    bad(
        "adapter of dropout 7",
        "model.path=a",
        "lora_dropout is 7",
        "model.path=",
        adapter(lora_dropout=7),
    ),
    bad("index of nothing", MODEL, "no weight_map", "again", model(indexed({"weight_map": {}}))),
    bad(
        "index that leads out",
        MODEL,
        "/etc/passwd, but there is no such file",
        "again",
        model(indexed({"weight_map": {"a": "/etc/passwd"}})),
    ),
    *(
        bad(
            f"tokens that are {name}",
            MODEL,
            "lists no tokens",
            "model.tokenizer.path=",
            model(edited(file, **{key: value})),
        )
        for name, file, key, value in (
            ("a number", "tokenizer.json", "added_tokens", 3),
            ("no objects", "tokenizer.json", "added_tokens", [3]),
            ("below 0", "tokenizer.json", "added_tokens", [{"id": -1, "content": "x"}]),
            ("of no model", "tokenizer.json", "model", 3),
            ("normalised by a number", "tokenizer.json", "normalizer", 3),
            (
                "of no number",
                "tokenizer_config.json",
                "added_tokens_decoder",
                {"x": {"content": "a"}},
            ),
            ("of no content", "tokenizer_config.json", "added_tokens_decoder", {"3": {}}),
        )
    ),
    bad(
        "no heads",
        MODEL,
        "is 0",
        "model.path=",
        model(edited("config.json", num_attention_heads=0)),
    ),
    bad(
        "generation_config.json that is deep",
        MODEL,
        "no JSON",
        "again",
        model(replaced("generation_config.json", "[" * 5000)),
    ),
    bad(
        "function between layers that is unknown",
        MODEL,
        "KeyError: 'nope'",
        "config.json",
        model(edited("config.json", hidden_act="nope")),
        late=True,
    ),
    bad(
        "code of its own",
        MODEL,
        "code",
        "trust_remote_code=true",
        model(edited("config.json", model_type="mine", auto_map={"AutoConfig": "code.Config"})),
    ),
    bad(
        "tokenizer that is missing",
        MODEL,
        "tokenizer",
        "model.tokenizer.path=",
        model(without("tokenizer.json", "tokenizer_config.json")),
    ),
    bad(
        "tokenizer without a vocabulary",
        MODEL,
        "tokenizer.json",
        "model.tokenizer.path=",
        model(without("tokenizer.json")),
    ),
    bad(
        "tokenizer.json that is cut",
        MODEL,
        "tokenizer.json",
        "again",
        model(cut("tokenizer.json", 0.5)),
    ),
    bad(
        "tokenizer.json that is a pointer",
        MODEL,
        "git-lfs",
        "git lfs pull",
        model(replaced("tokenizer.json", POINTER)),
    ),
    bad(
        "tokenizer_config.json that is broken",
        MODEL,
        "tokenizer_config.json",
        "again",
        model(replaced("tokenizer_config.json", "{")),
    ),
    bad(
        "tokenizer with more words than the model",
        MODEL,
        "tokens",
        "model.tokenizer.path=",
        model(
            edited(
                "tokenizer.json",
                added_tokens=[{"id": 600 + n, "content": f"<{n}>"} for n in range(300)],
            )
        ),
    ),
    bad(
        "tokenizer without an end",
        MODEL,
        "ends a text",
        "model.tokenizer.eos_token=",
        model(edited("tokenizer_config.json", eos_token=None)),
    ),
    bad(
        "end that is no token",
        "model.tokenizer.eos_token=STOP",
        "STOP",
        "model.tokenizer.eos_token=",
    ),
    bad(
        "pad that is no token",
        "model.tokenizer.pad_token=PADDING",
        "PADDING",
        "model.tokenizer.pad_token=",
    ),
    bad(
        "template that is unknown",
        "model.tokenizer.chat_template=chatmll",
        "chatmll",
        "model.tokenizer.chat_template=",
    ),
    bad(
        "chats without a template",
        f"{MODEL} {ROWS}",
        "no chat template",
        "model.tokenizer.chat_template=",
        {**model(without("chat_template.jinja")), "rows.jsonl": [CHAT] * 4},
    ),
    bad(
        "weights that are not finite",
        MODEL,
        "q_proj.weight",
        "model.path=",
        model(weights(not_finite)),
        late=True,
    ),
    bad(
        "template file that is missing",
        "model.tokenizer.chat_template=my.jinja",
        "my.jinja",
        "model.tokenizer.chat_template=",
    ),
    bad(
        "template that does not parse",
        "model.tokenizer.chat_template=my.jinja",
        "my.jinja, line 2",
        "model.tokenizer.chat_template=",
        {"my.jinja": "{% for message in messages %}\n{{ message['content' }}\n{% endfor %}"},
    ),
    bad(
        "template that is empty",
        "model.tokenizer.chat_template=my.jinja",
        "empty",
        "model.tokenizer.chat_template=",
        {"my.jinja": ""},
    ),
    bad(
        "own template by its name that raises",
        MODEL,
        "division by zero",
        "model.tokenizer.chat_template=",
        model(
            lambda folder: [
                edited(TOKENS, chat_template=[{"name": "default", "template": "{{ 1 / 0 }}"}])(
                    folder
                ),
                without("chat_template.jinja")(folder),
            ]
        ),
    ),
    bad(
        "template that raises for some rows",
        f"{ROWS} model.tokenizer.chat_template=my.jinja",
        "raises for these rows",
        "chatml",
        {
            "rows.jsonl": [CHAT] * 4,
            "my.jinja": "{% for turn in messages %}"
            "{{ turn.content }}<|im_end|>{% if turn.content == '2' %}"
            "{{ 1 / 0 }}{% endif %}{% endfor %}",
        },
        late=True,
    ),
    bad(
        "template with half a letter",
        "model.tokenizer.chat_template=my.jinja",
        "surrogates",
        "chatml",
        {
            "my.jinja": (
                "{% for turn in messages %}{{ turn.content }}<|im_end|>{% endfor %}{{ '\\ud800' }}"
            )
        },
    ),
    bad(
        "template of 3 GB",
        "model.tokenizer.chat_template=my.jinja",
        "my.jinja has 3,221,225,472 bytes",
        "model.tokenizer.chat_template=",
        {"my.jinja": hollow},
    ),
    bad(
        "own template of 3 GB",
        MODEL,
        "chat_template.jinja has",
        "model.tokenizer.chat_template=",
        model(lambda folder: hollow(folder / "chat_template.jinja")),
    ),
    bad(
        "template that is not UTF-8",
        "model.tokenizer.chat_template=my.jinja",
        "UTF-8",
        "iconv",
        {"my.jinja": (ROOT / "runner/model/template/chatml.jinja").read_bytes() + b"{# \xe9 #}"},
    ),
    bad(
        "own template that does not parse",
        MODEL,
        "chat_template.jinja, line 1",
        "model.tokenizer.chat_template=",
        model(replaced("chat_template.jinja", "{% for %}")),
    ),
    bad(
        "template that raises",
        "model.tokenizer.chat_template=my.jinja",
        "only users",
        "model.tokenizer.chat_template=",
        {"my.jinja": "{{ raise_exception('only users') }}"},
    ),
    bad(
        "template without the answer",
        "model.tokenizer.chat_template=my.jinja",
        "leaves out",
        "model.tokenizer.chat_template=",
        {"my.jinja": "{{ messages[0]['content'] }}<|im_end|>"},
    ),
    bad(
        "template without an end",
        "model.tokenizer.chat_template=my.jinja",
        "never learn to stop",
        "model.tokenizer",
        {"my.jinja": "{% for message in messages %}{{ message['content'] }}{% endfor %}"},
    ),
    bad(
        "template with an endless loop",
        "model.tokenizer.chat_template=my.jinja",
        "range",
        "model.tokenizer.chat_template=",
        {"my.jinja": "{% for i in range(1000000000) %}x{% endfor %}"},
    ),
    bad(
        "no marks with assistant_only_loss",
        "model.tokenizer.chat_template=my.jinja "
        f"{A}assistant_only_loss=true dataset=toy_demonstrations",
        "mark",
        "chatml",
        {
            "my.jinja": (
                "{% for turn in messages %}{{ turn['role'] }}: "
                "{{ turn['content'] }}<|im_end|>{% endfor %}"
            )
        },
        late=True,
    ),
    bad(
        "LoRA on layers that are not there",
        "peft=lora 'peft.target_modules=[c_attn]'",
        "no layer c_attn",
        "peft.target_modules=all-linear",
    ),
    bad(
        "pattern that fits no weight",
        "peft=pattern 'peft.matching=[nothing_at_all]'",
        "nothing_at_all",
        "peft.matching=",
    ),
    bad(
        "adapter whose base is missing",
        "model.path=a",
        "nowhere",
        "model.path=",
        adapter(base_model_name_or_path="./nowhere"),
    ),
    bad(
        "adapter as a pickle",
        "model.path=a",
        "adapter_model.safetensors",
        "safetensors_only=false",
        adapter("bin"),
    ),
    bad(
        "adapter for another task",
        "model.path=a",
        "SEQ_CLS",
        "trainer=reward",
        adapter(task_type="SEQ_CLS"),
    ),
    bad(
        "adapter_config.json that is broken",
        "model.path=a",
        "adapter_config.json",
        "again",
        {"a/adapter_config.json": "{", "a/adapter_model.safetensors": b"\x02\0\0\0\0\0\0\0{}"},
    ),
    bad(
        "teacher that is missing",
        "trainer=gkd trainer.teacher_model.path=./nowhere dataset=toy_demonstrations",
        "no folder",
        "trainer.teacher_model.path=",
    ),
    bad(
        "reward model that is missing",
        "trainer=grpo reward=model reward.model.path=./nowhere",
        "no folder",
        "reward.model.path=",
    ),
    bad(
        "architecture for a new model",
        "model=new model.model_type=qwen99",
        "qwen99",
        "model.model_type=",
    ),
    bad(
        "key that an architecture lacks",
        "model=new model.hiden_size=32",
        "hiden_size",
        "model.hidden_size=32",
    ),
]

# --- Rewards --------------------------------------------------------------------------------------

DELETES = """
import shutil
from transformers import TrainerCallback


class Mine(TrainerCallback):
    def on_log(self, args, state, control, **_):
        shutil.rmtree("outputs")
"""
GRPO = "trainer=grpo reward.mine._target_=mine.score allow=[mine]"
REWARD = [
    bad(
        "module that is missing",
        "trainer=grpo reward.mine._target_=nowhere.score",
        "no module nowhere",
        "reward.mine._target_=",
    ),
    bad(
        "function that is missing",
        "trainer=grpo reward.mine._target_=mine.scores allow=[mine]",
        "mine.scores",
        "mine.score",
        {"mine.py": "def score(completions):\n    return []\n"},
    ),
    bad(
        "file that does not parse",
        GRPO,
        "mine.py:2",
        "reward.mine._target_",
        {"mine.py": "def score(completions):\n    return [\n"},
    ),
    bad(
        "module that may not run",
        "trainer=grpo reward.mine._target_=mine.score",
        "may not run",
        "allow=[mine]",
        {"mine.py": "def score(completions):\n    return []\n"},
    ),
    bad(
        "function without completions",
        GRPO,
        "an argument called completions",
        "reward.mine.texts=",
        {"mine.py": "def score(texts):\n    return []\n"},
    ),
    bad(
        "column that no row has",
        GRPO,
        "solution",
        "column",
        {"mine.py": "def score(completions, solution):\n    return [0.0] * len(completions)\n"},
    ),
    bad(
        "target that is no function",
        GRPO,
        "mine.score",
        "reward.mine._target_",
        {"mine.py": "score = 3\n"},
    ),
    bad(
        "module that fails to import",
        GRPO,
        "nowhere",
        "pip install",
        {
            "mine.py": (
                "import nowhere_at_all\n\n\ndef score(completions):\n"
                "    return [0.0] * len(completions)\n"
            )
        },
        late=True,
        code=5,
    ),
    bad(
        "weight as text",
        "trainer=grpo reward=sorted_digits reward.sorted_digits.weight=much",
        "a number",
        "weight out",
    ),
    bad(
        "weight NaN",
        "trainer=grpo reward=sorted_digits reward.sorted_digits.weight=nan",
        "finite",
        "weight=",
    ),
    bad(
        "timeout of 0",
        "trainer=grpo reward=sorted_digits reward.sorted_digits.timeout=0",
        "above 0",
        "timeout out",
    ),
    bad(
        "pattern that is none",
        """trainer=grpo reward=format 'reward.format.pattern="(("'""",
        "regular expression",
        "reward.format.pattern=",
    ),
    bad(
        "argument that is misspelt",
        "trainer=grpo reward=length reward.length.taget=3",
        "taget",
        "reward.length",
    ),
    bad(
        "scores of another length",
        GRPO,
        "1 rewards for",
        "as long as completions",
        {"mine.py": "def score(completions, **_):\n    return [0.0]\n"},
        late=True,
    ),
    bad(
        "scores that are text",
        GRPO,
        "str 'good'",
        "list of numbers",
        {"mine.py": "def score(completions, **_):\n    return ['good'] * len(completions)\n"},
        late=True,
    ),
    bad(
        "function that raises",
        GRPO,
        "raised ValueError",
        "mine.py:2",
        {"mine.py": "def score(completions, **_):\n    return [int(text) for text in ['x']]\n"},
        late=True,
    ),
    bad(
        "module in an encoding that is unknown",
        GRPO,
        "mine.py:1: unknown encoding: nonsense",
        "mend line 1 of mine.py",
        {
            "mine.py": (
                "# coding: nonsense\ndef score(completions):\n    return [0.0] * len(completions)\n"
            )
        },
    ),
    bad(
        "module with a null byte",
        GRPO,
        "mine.py:1",
        "mend line 1 of mine.py",
        {"mine.py": b"def score(completions):\n    return []\n\0"},
    ),
    bad(
        "function that raises what is no Exception",
        GRPO,
        "raised GeneratorExit",
        "mine.py:2",
        {"mine.py": "def score(completions, **_):\n    raise GeneratorExit\n"},
        late=True,
    ),
    *(
        bad(
            f"code that calls {call}, {when}",
            GRPO,
            "exit",
            f"mine.py:{line}",
            {"mine.py": f"import os, sys\n{above}\n\ndef score(completions, **_):\n    {inside}\n"},
            late=True,
        )
        for call in ("os._exit(3)", "sys.exit(0)")
        for when, line, above, inside in (("early", 2, call, "return []"), ("late", 5, "", call))
    ),
    bad(
        "callback that deletes the run",
        "callback.mine._target_=mine.Mine allow=[mine]",
        "moved or deleted",
        "the same command",
        {"mine.py": DELETES},
        late=True,
        code=4,
    ),
    bad(
        "scores without an end",
        GRPO,
        "rewards for",
        "as long as completions",
        {
            "mine.py": (
                "import itertools\n\n\ndef score(completions, **_):\n    return itertools.count()\n"
            )
        },
        late=True,
    ),
    bad(
        "argument without a name",
        "'trainer.args.lr_scheduler_kwargs={1: 2}'",
        "the key 1",
        "trainer.args.lr_scheduler_kwargs=null",
    ),
    bad(
        "pattern over the whole machine",
        "'dataset.path=/**/*.jsonl' dataset=local",
        "the whole machine",
        "dataset=",
    ),
    bad("allowed packages as a number", "allow=3", "allow", "leave allow out"),
    bad(
        "step that is text",
        "dataset.map=mine.step allow=[mine]",
        "keys with a function of a row",
        "dataset.map._target_=mine.step",
    ),
    bad(
        "server that was not typed",
        OWN + " trainer=grpo",
        "was not typed",
        "url=",
        experiment(
            "defaults:\n  - override /reward: remote\n"
            "reward: {remote: {url: 'http://localhost:1/'}}\n"
        ),
    ),
]

# --- Places ---------------------------------------------------------------------------------------

DEEP = "/".join(["d" * 200] * 25)
PLACE = [
    bad("output_root is a file", "output_root=file", "file", "output_root=", {"file": "x"}, code=5),
    bad(
        "output_root below a file",
        "output_root=file/deep",
        "file",
        "output_root=",
        {"file": "x"},
        code=5,
    ),
    bad(
        "output_root that is read-only",
        "output_root=/proc/outputs",
        "/proc",
        "output_root=",
        code=5,
        skip=LINUX,
    ),
    bad(
        "output_root that is not ours",
        "output_root=out",
        "not writable for you",
        "output_root=",
        {"out": lambda path: path.mkdir(mode=0o500)},
        enter=powerless,
        code=5,
        skip=LINUX,
    ),
    bad(
        "output_root that is a broken link",
        "output_root=out",
        "out",
        "output_root=",
        {"out": link("/nowhere/at/all")},
        code=5,
    ),
    bad("output_root that is too long", f"output_root={DEEP}", "5024 bytes", "output_root="),
    bad("output_root that is empty", "output_root=", "output_root", "output_root=outputs"),
    bad("name of 300 letters", f"name={'n' * 300}", "100 characters", "name="),
    bad(
        "name of 100 wide letters",
        f"""'name="{"語" * 100}"'""",
        "folder name",
        "name=",
        why="a folder's name has at most 255 bytes",
    ),
    bad("name that leads out", "name=../elsewhere", "folder name", "name="),
    bad("name with a slash", "name=a/b", "folder name", "name="),
    bad("name that is hidden", "name=.x", "folder name", "name="),
    bad("name that is a dash", "name=-rf", "folder name", "name="),
    bad("name with a tab", "'name=\"a\tb\"'", "folder name", "name="),
    bad("name that is empty", "'name=\"\"'", "folder name", "name="),
    bad("name that is a number", "name=3", "text", "name="),
    bad("name with a line break", "'name=\"a\nb\"'", "folder name", "name="),
    bad(
        "name of a file",
        "name=taken",
        "outputs/taken",
        "output_root=",
        {"outputs/taken": "x"},
        code=5,
    ),
    bad(
        "working folder that is gone",
        "seed=1",
        "working folder",
        "cd",
        code=5,
        cold='mkdir gone; cd gone; rmdir ../gone; exec "$0" -m runner "$@"',
    ),
    bad(
        "HF_HOME that is read-only",
        "seed=1",
        "HF_HOME",
        "export HF_HOME=",
        code=5,
        environment={"HF_HOME": "/proc/hf"},
        skip=LINUX,
    ),
    bad(
        "HF_HOME that is a file",
        "seed=1",
        "HF_HOME",
        "export HF_HOME=",
        {"file": "x"},
        code=5,
        environment={"HF_HOME": "{folder}/file"},
    ),
    bad("run that is missing", "evaluate outputs/x/y", "outputs/x/y", "python -m runner", code=4),
    bad(
        "run to predict with that is missing",
        "predict outputs/x/y",
        "outputs/x/y",
        "python -m runner",
        code=4,
    ),
    bad(
        "run to export that is missing",
        "export outputs/x/y",
        "outputs/x/y",
        "python -m runner",
        code=4,
    ),
    bad(
        "run to repeat that is missing",
        "reproduce outputs/x/y",
        "outputs/x/y",
        "python -m runner",
        code=4,
    ),
    bad(
        "runs to report that are missing",
        "report outputs/x",
        "outputs/x",
        "python -m runner",
        code=4,
    ),
    bad(
        "recipe to import that is missing",
        "import nowhere.yaml",
        "nowhere.yaml",
        "python -m runner import",
    ),
]

# --- Environment ----------------------------------------------------------------------------------

ENVIRONMENT = [
    bad(
        "process of several without the first one's address",
        "seed=1",
        "MASTER_ADDR",
        "unset WORLD_SIZE",
        code=5,
        environment={"WORLD_SIZE": "2", "RANK": "0"},
    ),
    *(
        bad(f"{name} of {value!r}", words, name, f"unset {name}", code=5, environment={name: value})
        for words, name, value in (
            ("seed=1", "RANK", "x"),
            ("seed=1", "WORLD_SIZE", "0"),
            ("-m seed=1,2", "ACCELERATE_MIXED_PRECISION", "fp16"),
            ("seed=1", "ACCELERATE_MIXED_PRECISION", "foo"),
            ("seed=1", "ACCELERATE_USE_CPU", "true"),
            ("seed=1", "ACCELERATE_TORCH_DEVICE", "meta"),
            ("seed=1", "ACCELERATE_DYNAMO_BACKEND", "eager"),
            ("seed=1", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"),
            ("seed=1", "ACCELERATE_USE_MEGATRON_LM", "true"),
            ("seed=1", "ACCELERATE_USE_FSDP", "x"),
            ("rehearse", "ACCELERATE_USE_FSDP", "maybe"),
            ("rehearse", "ACCELERATE_DEBUG_MODE", ""),
            ("seed=1", "ACCELERATE_LOG_LEVEL", "loud"),
            ("seed=1", "OMPI_COMM_WORLD_SIZE", "4"),
            ("seed=1", "PMI_RANK", "x"),
            ("seed=1", "MASTER_PORT", "abc"),
            ("seed=1", "CUDA_VISIBLE_DEVICES", "x"),
            ("seed=1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"),
            ("preview", "HF_HUB_ETAG_TIMEOUT", "x"),
            ("seed=1", "HF_ENDPOINT", "file:///etc"),
            ("preview", "HF_ENDPOINT", "http://\u202ehost"),
            ("seed=1", "HF_DATASETS_IN_MEMORY_MAX_SIZE", "all"),
            ("seed=1", "TORCH_LOGS", "+nonsense"),
            ("seed=1", "PYTORCH_ALLOC_CONF", "x"),
            ("seed=1", "WANDB_MODE", "foo"),
            ("seed=1", "SWANLAB_MODE", "dryrun"),
        )
    ),
    bad(
        "bitsandbytes is missing",
        "quant=4bit peft=lora",
        "bitsandbytes",
        "pip install 'bitsandbytes>=0.50'",
        code=5,
        enter=lacking("bitsandbytes"),
    ),
    bad(
        "8-bit optimizer without bitsandbytes",
        f"{A}optim=adamw_8bit",
        "bitsandbytes",
        "pip install 'bitsandbytes>=0.50'",
        code=5,
        enter=lacking("bitsandbytes"),
    ),
    bad(
        "liger is missing",
        f"{A}use_liger_kernel=true",
        "liger",
        "pip install liger-kernel",
        code=5,
        enter=lacking("liger_kernel"),
    ),
    bad(
        "vllm is missing",
        f"trainer=grpo reward=sorted_digits {A}use_vllm=true",
        "vllm",
        "pip install",
        code=5,
        enter=lacking("vllm"),
    ),
    bad(
        "flash-attn is missing",
        "model.attention=flash_attention_2",
        "flash",
        "pip install flash-attn",
        code=5,
        enter=lacking("flash_attn"),
    ),
    bad(
        "deepspeed is missing",
        f"{A}deepspeed=ds.json",
        "deepspeed",
        "pip install deepspeed",
        {"ds.json": {}},
        code=5,
        enter=lacking("deepspeed"),
    ),
    bad(
        "optuna is missing",
        "sweep=search trainer=dpo objective=eval_loss",
        "hydra-optuna-sweeper is not installed",
        "pip install 'hydra-optuna-sweeper>=1.3,<1.4'",
        code=5,
        enter=lacking("hydra_plugins.hydra_optuna_sweeper"),
    ),
    bad(
        "joblib is missing",
        "-m hydra/launcher=joblib seed=1,2",
        "hydra-joblib-launcher is not installed",
        "pip install 'hydra-joblib-launcher>=1.2,<1.3'",
        code=5,
        enter=lacking("hydra_plugins.hydra_joblib_launcher"),
    ),
    bad(
        "plugin that is misspelt",
        "-m hydra/launcher=joblb seed=1,2",
        "no plugin 'joblb'",
        "hydra/launcher=",
    ),
    bad(
        "wandb is missing",
        "tracker=wandb",
        "wandb",
        "pip install 'wandb>=0.19'",
        code=5,
        enter=lacking("wandb"),
    ),
    bad(
        "mlflow is missing",
        "tracker=mlflow",
        "mlflow",
        "pip install 'mlflow-skinny>=3'",
        code=5,
        enter=lacking("mlflow"),
    ),
    bad(
        "swanlab is missing",
        "tracker=swanlab",
        "swanlab",
        "pip install 'swanlab>=0.6.2'",
        code=5,
        enter=lacking("swanlab"),
    ),
    bad(
        "trackio is missing",
        "tracker=trackio",
        "trackio",
        "pip install 'trackio>=0.43'",
        code=5,
        enter=lacking("trackio"),
    ),
    bad(
        "trackio in a list",
        "'tracker.report_to=[tensorboard,trackio]'",
        "trackio",
        "pip install 'trackio>=0.43'",
        code=5,
        enter=lacking("trackio"),
    ),
    bad(
        "zstandard is missing",
        f"{ROWS}.zst",
        "zstandard",
        "pip install zstandard",
        {"rows.jsonl.zst": b"(\xb5/\xfd$\x00"},
        code=5,
        enter=lacking("zstandard"),
    ),
    bad(
        "apollo is missing",
        f"{A}optim=apollo_adamw",
        "apollo",
        "pip install apollo-torch",
        code=5,
        enter=lacking("apollo_torch"),
    ),
    bad(
        "galore is missing",
        f"{A}optim=galore_adamw",
        "galore",
        "pip install galore-torch",
        code=5,
        enter=lacking("galore_torch"),
    ),
    bad(
        "TRL outside of its range",
        "seed=1",
        "trl 1.12.0",
        "pip install",
        package("trl", "1.12.0"),
        code=5,
    ),
    bad(
        "transformers outside of its range",
        "seed=1",
        "transformers 4.57.0",
        "pip install",
        package("transformers", "4.57.0"),
        code=5,
    ),
    bad(
        "both outside of their ranges",
        "seed=1",
        "trl 2.0.0",
        "transformers",
        package("trl", "2.0.0") | package("transformers", "6.0.0"),
        code=5,
    ),
    bad("fp16 on CPU", f"{A}fp16=true", "fp16", f"{A}fp16=false", code=5, late=True),
    bad("tf32 on CPU", f"{A}tf32=true", "tf32", f"{A}tf32=false", code=5, late=True),
    bad(
        "liger on CPU",
        f"{A}use_liger_kernel=true",
        "there is no GPU",
        f"{A}use_liger_kernel=false",
        {"liger_kernel.py": ""},
        code=5,
        late=True,
    ),
    bad(
        "model on no GPU",
        "model.device_map=cuda:0",
        "cuda:0",
        "model.device_map=null",
        code=5,
        late=True,
    ),
    bad(
        "parts of a model on no GPU",
        "'+model.device_map={model.embed_tokens: 0, model.layers: cpu}'",
        "no such device",
        "model.device_map=null",
        code=5,
        late=True,
    ),
    bad(
        "best model by a figure that is not there",
        f"{A}metric_for_best_model=eval_los {A}eval_strategy=steps {A}eval_steps=1",
        "eval_los, which",
        f"{A}metric_for_best_model=eval_loss",
        late=True,
    ),
    bad(
        "dataset that is not in the cache",
        "dataset=hub dataset.path=no/where",
        "HF_HUB_OFFLINE",
        "unset HF_HUB_OFFLINE",
        code=5,
    ),
    bad(
        "model that is not in the cache",
        "model=hub model.path=no/where",
        "cache",
        "unset HF_HUB_OFFLINE",
        code=5,
    ),
]

# --- Odd, and good --------------------------------------------------------------------------------

CHATS = [{"messages": [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]}] * 4
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
}
TOOLS = [
    {
        "messages": [
            CHAT["messages"][0],
            CALL,
            {"role": "tool", "content": "2", "name": "add"},
            CHAT["messages"][1],
        ]
    }
] * 4
ODD_ROWS = [
    good("byte order mark", ROWS, {"rows.jsonl": b"\xef\xbb\xbf" + LINE * 4}),
    good("CRLF", ROWS, {"rows.jsonl": LINE.replace(b"\n", b"\r\n") * 4}),
    good("no newline at the end", ROWS, {"rows.jsonl": (LINE * 4)[:-1]}),
    good(
        "empty lines between rows",
        ROWS,
        {"rows.jsonl": b"\n" + LINE + b"\n  \n" + LINE * 3 + b"\n\n"},
    ),
    good("one row", ROWS, {"rows.jsonl": LINE}),
    good(
        "a json array",
        "dataset=local dataset.path=rows.json",
        {"rows.json": json.dumps(FOUR, indent=1)},
    ),
    good(
        "a json array in jsonl",
        "dataset=local dataset.path=rows.json",
        {"rows.json": json.dumps(FOUR)},
    ),
    good("gzip", f"{ROWS}.gz", {"rows.jsonl.gz": gzip.compress(LINE * 4)}),
    good(
        "csv",
        "dataset=local dataset.path=rows.csv",
        {"rows.csv": 'prompt,completion\n1+1=,2\n"a, ""b""\nc",d\n'},
    ),
    good(
        "csv with byte order mark and CRLF",
        "dataset=local dataset.path=rows.csv",
        {"rows.csv": "\ufeffprompt,completion\r\n1+1=,2\r\n1+2=,3\r\n"},
    ),
    good(
        "tsv",
        "dataset=local dataset.path=rows.tsv",
        {"rows.tsv": "prompt\tcompletion\n1+1=\t2\n1+2=\t3\n"},
    ),
    good("capital suffix", "dataset=local dataset.path=ROWS.JSONL", {"ROWS.JSONL": FOUR}),
    good(
        "emoji and other scripts",
        ROWS,
        {"rows.jsonl": [{"prompt": "¿Qué? 🙂👩‍👩‍👧 語", "completion": " שלום ✅"}] * 4},
    ),
    good(
        "a very long row",
        f"{ROWS} tolerate.truncated=1",
        {"rows.jsonl": [EXCHANGE] * 3 + [EXCHANGE | {"prompt": "word " * 100_000}]},
    ),
    good(
        "columns beyond the known",
        ROWS,
        {
            "rows.jsonl": [
                EXCHANGE | {"id": n, "meta": {"a": [n]}, "score": n / 2, "none": None}
                for n in range(4)
            ]
        },
    ),
    good(
        "columns that some rows lack",
        ROWS,
        {"rows.jsonl": [EXCHANGE, EXCHANGE | {"source": "x"}] * 2},
    ),
    good("system turn first", ROWS, {"rows.jsonl": CHATS}),
    good("tool calls", f"{ROWS} model.tokenizer.chat_template=hermes", {"rows.jsonl": TOOLS}),
    good(
        "ShareGPT roles",
        ROWS,
        {
            "rows.jsonl": [
                {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
            ]
            * 4
        },
    ),
    good(
        "NaN beside the text",
        ROWS,
        {"rows.jsonl": b'{"prompt": "a", "completion": "b", "score": NaN}\n' * 4},
    ),
    good(
        "content in parts",
        ROWS,
        {
            "rows.jsonl": [
                {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, ANSWER]}
            ]
            * 4
        },
    ),
    good("some pairs of equals", PAIRS, {"rows.jsonl": [PAIR, PAIR | {"rejected": " 2"}] * 3}),
    good(
        "bad rows dropped",
        f"{ROWS} dataset.bad_rows=drop",
        {"rows.jsonl": [EXCHANGE, {"prompt": "a", "completion": ""}] * 4},
    ),
    good("rows that are repeated", ROWS, {"rows.jsonl": [EXCHANGE] * 8}),
    good(
        "held-out rows that are trained on",
        f"{ROWS} dataset.split.eval=train",
        {"rows.jsonl": FOUR},
    ),
    good(
        "fewer rows than a batch", f"{ROWS} {A}per_device_train_batch_size=64", {"rows.jsonl": FOUR}
    ),
    good("more warm-up than epochs tell", f"{ROWS} {A}warmup_steps=0.5", {"rows.jsonl": FOUR}),
    good("save less often than it ends", f"{ROWS} {A}save_steps=1000", {"rows.jsonl": FOUR}),
    good(
        "file name in another script",
        "dataset=local 'dataset.path=дані 数据.jsonl'",
        {"дані 数据.jsonl": FOUR},
    ),
    good(
        "file name with dots and spaces",
        "dataset=local 'dataset.path=my rows.v2.0 (final).jsonl'",
        {"my rows.v2.0 (final).jsonl": FOUR},
    ),
    good(
        "file name with brackets",
        "dataset=local 'dataset.path=rows[1].jsonl'",
        {"rows[1].jsonl": FOUR},
    ),
    good(
        "Windows path",
        r"dataset=local 'dataset.path=C:\data\rows.jsonl'",
        {r"C:\data\rows.jsonl": FOUR},
    ),
    good(
        "symlink",
        "dataset=local dataset.path=link.jsonl",
        {"data/rows.jsonl": FOUR, "link.jsonl": link("data/rows.jsonl")},
    ),
    good(
        "folder behind a symlink",
        "dataset=local dataset.path=link",
        {"data/train.jsonl": FOUR, "link": link("data")},
    ),
    good(
        "path from here",
        "dataset=local dataset.path=./data/../data/rows.jsonl",
        {"data/rows.jsonl": FOUR},
    ),
    good(
        "path from the root", "dataset=local dataset.path={folder}/rows.jsonl", {"rows.jsonl": FOUR}
    ),
    good(
        "read-only folder",
        "dataset=local dataset.path=data/rows.jsonl",
        {"data/rows.jsonl": FOUR, "data": lambda path: path.chmod(0o500)},
    ),
    good(
        "pattern of files",
        "dataset=local 'dataset.path=data/*.jsonl'",
        {"data/a.jsonl": FOUR, "data/b.jsonl": FOUR},
    ),
    good(
        "zstandard",
        f"{ROWS}.zst",
        {"rows.jsonl.zst": lambda path: zstd(path)},
        skip="" if find_spec("zstandard") else "zstandard is missing",
    ),
    good(
        "parquet",
        "dataset=local dataset.path=rows.parquet",
        {"rows.parquet": lambda path: parquet(path)},
    ),
]
ODD_WORDS = [
    good("1e-4", "learning_rate=1e-4"),
    good("1_000", f"{A}save_steps=1_000"),
    good(
        "quoted numbers that YAML would read otherwise", OWN, experiment("name: '012'\nseed: 0\n")
    ),
    good("1e-4 in yaml", OWN, experiment("learning_rate: 1e-4\n")),
    good(
        "list on the command line",
        f"'{A}optim_target_modules=[q_proj, v_proj]' --dry-run",
        looks=True,
    ),
    good("name with dots and spaces", "'name=my run v1.0'"),
    good("name in another script", "name=прогін"),
    good("value of 300 letters", f"'tracker.tags=[{'t' * 300}]'"),
    good(
        "config folder that shadows",
        "--config-dir own trainer=sft",
        own("trainer/sft.yaml", (ROOT / "conf/trainer/sft.yaml").read_text()),
    ),
    good(
        "config folder with a README",
        "--config-dir own seed=1",
        {"own/README.md": "x", "own/experiment/e.yaml": "seed: 1\n"},
    ),
    good("empty yaml", OWN, own("experiment/x.yaml", "# @package _global_\n")),
    good(
        "yaml with byte order mark",
        OWN,
        {"own/experiment/x.yaml": "\ufeff# @package _global_\nseed: 3\n"},
    ),
    good("yaml with CRLF", OWN, {"own/experiment/x.yaml": b"# @package _global_\r\nseed: 3\r\n"}),
    good(
        "a conf folder here",
        "seed=1",
        {"conf/config.yaml": "nonsense: true\n", "conf/trainer/mine.yaml": "nonsense: true\n"},
    ),
    good("a runner-like file here", "seed=1", {"yaml.txt": "x", "trl.txt": "x"}),
    good("output_root from the root", "output_root={folder}/out"),
    good(
        "output_root behind a symlink", "output_root=link", {"real": folder, "link": link("real")}
    ),
    good("model behind a symlink", "model.path=link", model() | {"link": link("m")}),
    good("model path with a slash at the end", "model.path=m/", model()),
    good("model in two shards", "model.path=m", model(lambda path: shards(path))),
    good(
        "weights that nobody asked for",
        "model.path=m",
        model(weights(lambda tensors: {**tensors, "extra": tensors["model.norm.weight"]})),
    ),
]
SHELL = 'exec "$0" -m runner "$@"'
ODD_PLACES = [
    good("umask 077", "seed=1", looks=True, cold=f"umask 077; {SHELL} --dry-run"),
    good("HOME unset", "seed=1 --dry-run", looks=True, cold=SHELL, environment={"HOME": "unset"}),
    good(
        "LANG=C",
        "dataset=local 'dataset.path=дані.jsonl' --dry-run",
        {"дані.jsonl": FOUR},
        looks=True,
        cold=SHELL,
        environment={"LANG": "C", "LC_ALL": "C"},
    ),
    good(
        "LC_ALL=POSIX",
        "seed=1 name=прогін --dry-run",
        looks=True,
        cold=SHELL,
        environment={"LC_ALL": "POSIX"},
    ),
    good("closed stdin", "seed=1 --dry-run", looks=True, cold=f"{SHELL} <&-"),
    good("closed stdout", "seed=1 --dry-run", looks=True, cold=f"{SHELL} >&-"),
    good(
        "output to a pipe that closes",
        "-m seed=range(40) --dry-run",
        looks=True,
        cold='set -o pipefail; "$0" -m runner "$@" | head -1',
    ),
    good("TERM=dumb", "seed=1 --dry-run", looks=True, cold=SHELL, environment={"TERM": "dumb"}),
    good("TERM unset", "seed=1 --dry-run", looks=True, cold=SHELL, environment={"TERM": "unset"}),
    good(
        "20 columns",
        "-m seed=1,2 --dry-run",
        looks=True,
        cold=SHELL,
        environment={"COLUMNS": "20", "LINES": "5"},
    ),
    good(
        "PYTHONHASHSEED",
        "seed=1 --dry-run",
        looks=True,
        cold=SHELL,
        environment={"PYTHONHASHSEED": "7"},
    ),
    good(
        "PYTHONOPTIMIZE",
        "seed=1 --dry-run",
        looks=True,
        cold=SHELL,
        environment={"PYTHONOPTIMIZE": "2"},
    ),
    good(
        "warnings as errors",
        "seed=1 --dry-run",
        looks=True,
        cold=SHELL,
        environment={"PYTHONWARNINGS": "error"},
    ),
    good(
        "PYTHONSAFEPATH",
        "seed=1 --dry-run",
        looks=True,
        cold=SHELL,
        environment={"PYTHONSAFEPATH": "1"},
    ),
    good(
        "variables of accelerate launch, of a scheduler and of a careful person",
        "seed=1 --dry-run",
        looks=True,
        cold=SHELL,
        environment={
            **{
                "ACCELERATE_MIXED_PRECISION": "no",
                "ACCELERATE_USE_CPU": "False",
                "ACCELERATE_DYNAMO_BACKEND": "NO",
            },
            **{
                "ACCELERATE_CPU_AFFINITY": "False",
                "CUDA_VISIBLE_DEVICES": "GPU-8a1b,MIG-3f/1/0",
                "PMI_SIZE": "1",
            },
            **{
                "TORCH_LOGS": "+dynamo,graph_breaks,-torch.distributed",
                "OMP_NUM_THREADS": "x",
                "COLUMNS": "1000000",
            },
            **{
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True",
                "TMPDIR": "/nowhere",
            },
        },
    ),
    good(
        "a limit of 256 open files", "seed=1 --dry-run", looks=True, cold=f"ulimit -n 256; {SHELL}"
    ),
    good(
        "read-only working folder",
        "seed=1 output_root=/tmp --dry-run",
        looks=True,
        cold=f"chmod 500 .; {SHELL}",
    ),
]


def zstd(path: Path) -> None:
    import zstandard

    path.write_bytes(zstandard.compress(LINE * 4))


def parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(FOUR), path)


def shards(path: Path) -> None:
    """The weights in two files and an index."""
    content = (path / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    names = list(header)
    places = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        data = b""
        entries = {}
        for name in part:
            start, end = header[name]["data_offsets"]
            piece = content[8 + size + start : 8 + size + end]
            entries[name] = header[name] | {"data_offsets": [len(data), len(data) + len(piece)]}
            data += piece
            places[name] = file
        text = json.dumps({"__metadata__": {"format": "pt"}} | entries).encode()
        (path / file).write_bytes(struct.pack("<Q", len(text)) + text + data)
    (path / "model.safetensors").unlink()
    write(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})


KINDS = {
    "syntax": SYNTAX,
    "number": NUMBER,
    "pair": COMBINATION,
    "dataset": DATASET,
    "model": MODELS,
    "reward": REWARD,
    "place": PLACE,
    "system": ENVIRONMENT,
}
BAD: list[Case] = []
for kind, cases in KINDS.items():
    BAD += [replace(case, kind=kind) for case in cases]
GOOD = [*ODD_ROWS, *ODD_WORDS, *ODD_PLACES]
