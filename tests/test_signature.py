"""Signatures read from source are those that Python has, and reading them imports nothing."""

import ast
import dataclasses
import importlib
import inspect
import shlex
import subprocess
import sys
import time
import warnings
from pathlib import Path
from textwrap import dedent

import pytest

from runner.config.override import parse, quote_text
from runner.schema.choices import choices_compared
from runner.schema.literal import to_text
from runner.schema.read import UNKNOWN, read_signature
from runner.schema.source import Definition, find_definition, find_module, public_names
from runner.schema.text import to_override
from runner.schema.type import shortened

ROOT = Path(__file__).parent.parent
TRAINERS = {
    **{name: "trl" for name in ("SFT", "Reward", "DPO", "KTO", "GRPO", "RLOO", "Distillation")},
    **{name: f"trl.experimental.{name.lower()}" for name in ("ORPO", "CPO", "GKD", "TPO", "GOLD")},
    "OnlineDPO": "trl.experimental.online_dpo",
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes modules of a throw-away package ``pkg``; the empty name is the package itself."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()

    def write(text: str, name: str = "") -> None:
        path = tmp_path / "pkg" / (f"{name.replace('.', '/')}.py" if name else "__init__.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))

    return write


def kinds(target: str) -> dict[str, str]:
    return {name: str(p.type) for name, p in read_signature(target).parameters.items()}


# --- what is installed ---


@pytest.mark.slow
def test_nothing_heavy_is_imported():
    code = """
        import sys
        from runner.schema.choices import choices_compared
        from runner.schema.read import read_signature
        from runner.schema.source import public_names
        assert len(read_signature("trl.DPOConfig").parameters) > 100
        assert read_signature("transformers.AutoModelForCausalLM.from_pretrained")
        assert read_signature("peft.LoraConfig") and read_signature("torch.optim.AdamW")
        assert choices_compared("trl.GRPOTrainer", "loss_type") and public_names("trl")
        heavy = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "omegaconf")
        print([name for name in heavy if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("target", "home"),
    [
        ("trl.DPOConfig", "trl.trainer.dpo_config.DPOConfig"),
        ("trl.experimental.orpo.ORPOTrainer", "trl.experimental.orpo.orpo_trainer.ORPOTrainer"),
        ("transformers.TrainingArguments", "transformers.training_args.TrainingArguments"),
        (
            "transformers.AutoModelForCausalLM",
            "transformers.models.auto.modeling_auto.AutoModelForCausalLM",
        ),
        ("transformers.Qwen2Config", "transformers.models.qwen2.configuration_qwen2.Qwen2Config"),
        ("peft.LoraConfig", "peft.tuners.lora.config.LoraConfig"),
        ("torch.optim.AdamW", "torch.optim.adamw.AdamW"),
        ("trl.rewards.accuracy_reward", "trl.rewards.accuracy_rewards.accuracy_reward"),
        ("logging.os.system", "os.system"),
        ("runner.io.files.write_text", "runner.io.files.write_text"),
    ],
)
def test_names_are_followed_home(target, home):
    assert find_definition(target).home == home


@pytest.mark.parametrize("target", ["trl.DPOConfg", "trl.nowhere.X", "no_such_package.X", "", "."])
def test_names_that_do_not_exist(target):
    assert find_definition(target) is None
    assert read_signature(target) is None


def test_a_module_is_no_target():
    assert not isinstance(find_definition("trl.trainer"), Definition)
    assert read_signature("trl.trainer") is None


def test_types_of_a_trainer_config():
    kinds_of_fields = kinds("trl.DPOConfig")
    assert kinds_of_fields["learning_rate"] == "a number"
    assert kinds_of_fields["max_steps"] == "a whole number"
    assert kinds_of_fields["max_length"] == "a whole number or null"
    assert kinds_of_fields["save_strategy"] == "one of no, steps, epoch, best"
    assert kinds_of_fields["report_to"] == "text or a list of texts or null"
    assert kinds_of_fields["loss_weights"] == "a list of numbers or null"
    types = {name: p.type for name, p in read_signature("trl.DPOConfig").parameters.items()}
    assert "cosine" in types["lr_scheduler_type"].choices
    assert types["truncation_mode"].choices == ("keep_end", "keep_start")
    assert types["loss_type"].accepts("ipo"), "__post_init__ makes a list of a text"
    beta = read_signature("trl.experimental.online_dpo.OnlineDPOConfig").parameters["beta"]
    assert beta.type.accepts(0.1), "its docstring says float or list[float]"


@pytest.mark.parametrize(
    "name", ["trl.trainer.dpo_trainer", "transformers.trainer", "transformers.training_args"]
)
def test_skipped_parts_of_methods_hide_no_argument_and_shift_no_line(name):
    """Only the head of most methods is parsed; all other statements keep the lines of the file."""

    def outline(tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield node.name, node.lineno
                for entry in node.body:
                    yield entry.lineno, ast.dump(entry.args if hasattr(entry, "args") else entry)

    module = find_module(name)
    bare = list(outline(module.tree))
    lines = list(outline(ast.parse(module.text)))
    assert bare == lines
    assert len(list(ast.walk(module.tree))) < len(list(ast.walk(ast.parse(module.text)))) * 0.7


def test_types_without_annotations_come_from_the_docstring():
    types = kinds("transformers.BitsAndBytesConfig")
    assert types["load_in_4bit"] == "true or false"
    assert types["llm_int8_threshold"] == "a number"
    assert types["bnb_4bit_compute_dtype"] == "text or null"


def test_arguments_that_are_only_logged_are_not_open():
    assert not read_signature("transformers.BitsAndBytesConfig").is_open
    assert read_signature("transformers.AutoModelForCausalLM.from_pretrained").is_open


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ("SFT", {"nll", "dft"}),
        ("KTO", {"kto", "apo_zero_unpaired"}),
        ("GRPO", {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo"}),
        ("CPO", {"sigmoid", "hinge", "ipo", "simpo"}),
        ("OnlineDPO", {"sigmoid", "ipo"}),
        ("GKD", {"nll", "dft"}),
        ("Reward", set()),
    ],
)
def test_loss_types_that_the_source_knows(trainer, expected):
    assert set(choices_compared(f"{TRAINERS[trainer]}.{trainer}Trainer", "loss_type")) == expected


def test_the_fifteen_losses_of_dpo():
    assert len(choices_compared("trl.DPOTrainer", "loss_type")) == 15


def test_public_names_reach_into_likely_star_imports():
    assert "DPOConfig" in public_names("trl")
    assert "AutoModelForCausalLM" in public_names("transformers", "AutoModelForCasualLM")


def _real(target: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package, _, name = target.rpartition(".")
        return getattr(importlib.import_module(package), name)


def _others() -> list[str]:
    peft = [f"peft.{name}" for name in public_names("peft") if name.endswith("Config")]
    plain = ("EarlyStoppingCallback", "DataCollatorForLanguageModeling", "Adafactor")
    optimizers = ("AdamW", "SGD", "Adafactor", "lr_scheduler.LambdaLR", "lr_scheduler.OneCycleLR")
    return [
        *peft,
        *(f"transformers.{name}" for name in plain),
        *(f"torch.optim.{name}" for name in optimizers),
        "transformers.BitsAndBytesConfig",
        "transformers.get_cosine_schedule_with_warmup",
        "trl.rewards.get_soft_overlong_punishment",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Config", "Trainer"])
@pytest.mark.parametrize("name", TRAINERS)
def test_trainers_take_what_python_says(name, kind):
    target = f"{TRAINERS[name]}.{name}{kind}"
    _compare(target)
    if kind == "Config":
        fields = {field.name for field in dataclasses.fields(_real(target)) if field.init}
        assert set(read_signature(target).parameters) == fields


@pytest.mark.slow
@pytest.mark.parametrize("target", _others())
def test_other_parts_take_what_python_says(target):
    _compare(target)


def _compare(target: str) -> None:
    real = _real(target)
    read = read_signature(target)
    parameters = inspect.signature(real).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    assert set(read.parameters) == set(named)
    for name, parameter in read.parameters.items():
        default = named[name].default
        assert parameter.required == (default is inspect.Parameter.empty), name
        if default is None or isinstance(default, bool | int | float | str):
            plain = getattr(default, "value", default)
            assert parameter.type.accepts(plain), (name, parameter.type, plain)
            assert parameter.default in (UNKNOWN, plain), name


# --- what Python can write ---


def test_dataclasses_across_modules(module):
    module(
        """
        from dataclasses import dataclass, field, KW_ONLY, InitVar
        from typing import ClassVar
        from .base import Base as Parent

        @dataclass
        class Child(Parent):
            known: ClassVar[dict] = {}
            _: KW_ONLY
            size: int = 3
            names: list[str] = field(default_factory=list)
            secret: str = field(init=False, default="")
            given: InitVar[float] = 1.0
            needed: bool = field(metadata={"help": "yes"})
        """
    )
    module(
        """
        import dataclasses

        @dataclasses.dataclass
        class Base:
            size: str
            deep: int = 1
        """,
        "base",
    )
    signature = read_signature("pkg.Child")
    assert list(signature.parameters) == ["size", "deep", "names", "given", "needed"]
    assert signature.required == ["needed"]
    assert str(signature.parameters["size"].type) == "a whole number"
    assert signature.lineage == ("Child", "Base")


def test_constructors_are_inherited(module):
    module(
        """
        class Mixin: pass
        class Base:
            def __init__(self, a, /, b, *, c: int = 1): ...
        class Child(Mixin, Base): pass
        class Empty: pass
        class Made:
            def __new__(cls, size): ...
        """
    )
    assert list(read_signature("pkg.Child").parameters) == ["b", "c"]
    assert read_signature("pkg.Child").required == ["b"]
    assert not read_signature("pkg.Empty").parameters
    assert not read_signature("pkg.Empty").is_open
    assert list(read_signature("pkg.Made").parameters) == ["size"]


def test_methods(module):
    module(
        """
        class Loader:
            @classmethod
            def load(cls, path): ...
            @staticmethod
            def make(path): ...
        class Child(Loader): ...
        """
    )
    for target in ("pkg.Loader.load", "pkg.Loader.make", "pkg.Child.load"):
        assert list(read_signature(target).parameters) == ["path"]
    assert read_signature("pkg.Child.load").name == "Child"
    assert find_definition("pkg.Child.load").home == "pkg.Loader.load"
    assert find_definition("pkg.Loader.load.other") is None


def test_other_arguments(module):
    module(
        """
        class Base:
            def __init__(self, first, second=2, third=3): ...
        class Passing(Base):
            def __init__(self, extra, *args, **kwargs):
                super().__init__(extra, *args, third=4, **kwargs)
        class Taking:
            def __init__(self, **kwargs):
                self.size = kwargs.pop("size", 1)
                self.name = kwargs["name"] if "name" in kwargs else ""
                if kwargs:
                    raise TypeError(f"unknown: {kwargs}")
        def using(**kwargs):
            return dict(**kwargs)
        def ignoring(a, **kwargs):
            return a
        class Mixin:
            def __init__(self, size=1, **kwargs):
                super().__init__(**kwargs)
        class Bare: ...
        class Last(Bare):
            def __init__(self, size=1, **kwargs):
                super().__init__(**kwargs)
        """
    )
    assert read_signature("pkg.Mixin").is_open and not read_signature("pkg.Last").is_open, (
        "object takes nothing"
    )
    passing = read_signature("pkg.Passing")
    taking = read_signature("pkg.Taking")
    assert list(passing.parameters) == ["second", "extra"]
    assert not passing.is_open
    assert set(taking.parameters) == {"size", "name"}
    assert not taking.is_open
    assert read_signature("pkg.using").is_open
    assert not read_signature("pkg.ignoring").is_open, "it would drop a misspelt key"


def test_a_constructor_that_cannot_be_read_takes_anything(module):
    module(
        """
        from not_installed import Base
        class Child(Base): ...
        @define
        class Decorated:
            size: int
        class Meta(metaclass=Base): ...
        made = Base.make()
        """
    )
    for name in ("Child", "Decorated", "Meta"):
        assert read_signature(f"pkg.{name}").is_open
    assert read_signature("pkg.made").is_open
    assert find_definition("pkg.Base").home == "not_installed.Base"


def test_ways_to_provide_a_name(module):
    module(
        """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from .inner import Typed
        else:
            Typed = None
        try:
            from .inner import Optional as Kept
        except ImportError:
            class Kept: ...
        from .inner import *
        import pkg.inner as alias
        Alias = alias.Typed
        """
    )
    module(
        """
        def Typed(a): ...
        def Optional(b): ...
        def Lazy(c): ...
        def Starred(d): ...
        def _hidden(): ...
        """,
        "inner",
    )
    for name, key in {"Typed": "a", "Kept": "b", "Lazy": "c", "Starred": "d", "Alias": "a"}.items():
        assert list(read_signature(f"pkg.{name}").parameters) == [key]
    assert "Starred" in public_names("pkg")
    assert "_hidden" not in public_names("pkg")
    assert list(read_signature("pkg.alias.Lazy").parameters) == ["c"]
    assert list(read_signature("pkg.inner.Lazy").parameters) == ["c"]
    # type checkers do not know it either
    module('_import_structure = {"inner": ["Lazy"]}', "lazy")
    assert read_signature("pkg.lazy.Lazy").is_open


def test_overloads_and_decorated_classes(module):
    module(
        """
        from typing import overload
        @overload
        def load(a: int): ...
        @overload
        def load(a: str): ...
        def load(a, b=1): ...
        class Model:
            def __init__(self, size): ...
        Model = register(Model)
        """
    )
    assert list(read_signature("pkg.load").parameters) == ["a", "b"]
    assert list(read_signature("pkg.Model").parameters) == ["size"]


@pytest.mark.parametrize(
    "text", ["def __getattr__(name): ...", "globals().update(Made=1)", "globals()['Made'] = 1"]
)
def test_names_that_are_made_while_running_cannot_be_ruled_out(module, text):
    module(text)
    assert read_signature("pkg.Made").is_open


def test_circular_imports_end(module):
    module("from pkg.other import Name\nfrom pkg.other import *")
    module("from pkg import Name\nfrom pkg import *", "other")
    assert read_signature("pkg.Missing") is None
    assert read_signature("pkg.Name") is None or read_signature("pkg.Name").is_open


def test_a_module_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "my_own_rewards.py").write_text("def short(completions, limit: int = 3): ...\n")
    monkeypatch.chdir(tmp_path)
    assert set(read_signature("my_own_rewards.short").parameters) == {"completions", "limit"}


def test_a_changed_file_is_read_again(tmp_path, module):
    module("def f(a): ...")
    assert list(read_signature("pkg.f").parameters) == ["a"]
    module("def f(a, longer): ...")
    assert list(read_signature("pkg.f").parameters) == ["a", "longer"]


def test_source_that_is_no_python(module):
    module("def f(:")
    assert read_signature("pkg.f") is None


def test_what_looks_like_a_definition_in_a_text_is_none(module):
    module(
        """
        TEXT = '''
        class Hidden:
            pass
        '''
        class Shown:
            def __init__(self, kept=1): ...
        """
    )
    assert find_definition("pkg.Hidden") is None
    assert list(read_signature("pkg.Shown").parameters) == ["kept"]


def test_decorators_on_several_lines_belong_to_their_class(module):
    module(
        """
        import dataclasses

        @dataclasses.dataclass(
            frozen=True,
        )
        # a word on it
        class Settings:
            size: int = 1

        if True:
            @dataclasses.dataclass
            class Inner:
                depth: int = 2
        """
    )
    assert list(read_signature("pkg.Settings").parameters) == ["size"]
    assert list(read_signature("pkg.Inner").parameters) == ["depth"]


def test_a_function_that_is_no_python_among_others_is_not_found(module):
    module("class Fine: ...\n\n\ndef wrong(:\n    pass\n")
    assert find_definition("pkg.wrong") is None


def test_annotations(module):
    module(
        """
        from __future__ import annotations
        import enum
        import typing as t
        from typing import Annotated, Literal, Optional, Union
        class Speed(str, enum.Enum):
            SLOW = "slow"
            FAST = "fast"
        class Other: ...
        Alias = int | None
        Role = Literal["prompt", "chosen"]
        def f(
            a: Optional[int], b: Union[int, str], c: "float", d: t.List[float], e: dict[Role, str],
            f: Literal["x", 1, None], g: Speed | str, h: Other | float, i: Other | None, j: Alias,
            l: tuple[float, float], m: tuple[int, ...], n: Annotated[bool, "doc"],
            o: Literal["auto"] | str, p: int = None, q: Unknown = 3, r: Literal["n_[size]"] = "n_1",
        ): ...
        """
    )
    types = {name: p.type for name, p in read_signature("pkg.f").parameters.items()}
    good = {
        "a": [1, None], "b": [1, "x"], "c": [1, 2.5], "d": [[], [1, 2.5]], "e": [{"chosen": "x"}],
        "f": ["x", 1, None], "g": ["slow"], "h": [1.5], "i": ["anything", None], "j": [1, None],
        "l": [[1, 2.5]], "m": [[], [1, 2, 3]], "n": [True],
        "o": ["auto", "other"], "p": [None, 1], "q": ["anything", 1], "r": ["n_4"],
    }  # fmt: skip
    bad = {
        "a": [1.5, "1", True], "b": [1.5, None], "c": ["1", True, None], "d": [1, ["x"], {}],
        "e": [{"promt": "x"}, {"prompt": 1}, []], "f": ["y", 2, True], "g": ["fat", "SLOW", 1],
        "h": ["x"], "j": ["x"], "l": [[1], ["x", 1]],
        "m": [["x"], 1], "n": [0, "true"], "o": [1], "p": ["x"], "r": ["m_4"],
    }  # fmt: skip
    for name, values in good.items():
        for value in values:
            assert types[name].accepts(value), (name, types[name])
    for name, values in bad.items():
        for value in values:
            assert not types[name].accepts(value), (name, types[name])
    for signature in types.values():
        assert signature.accepts({"_target_": "x"})


def test_values_as_the_command_line_takes_them():
    assert to_text(["a b", "x=1", "1", 1e-6, None, {"k": True}]) == (
        "[a b,'x=1','1',1e-6,null,{k:true}]"
    )
    assert shortened(["one", "two", "three"], 12) == "one, ... (3)"


def test_a_long_number_that_is_none_is_written_at_once():
    text = "1" * 50_000 + "x"
    start = time.process_time()
    assert to_text(text) == text
    assert to_text("1" * 50) == f"'{'1' * 50}'"
    assert to_text("1_0.5e-3") == "'1_0.5e-3'"
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            1e-6,
            "none",
            "null",
            "1e-5",
            ".5",
            "",
            "a b",
            "a, b",
            "it's",
            "'\"",
            "a\\",
            "x\ny",
            "${y}",
            "{a}",
        ),
        *("\\d+\\s", "(a|b)*", ["q", "a b", None], ["[0-9]+", "\\d'"], {"a": 1, "b c": ["x, y"]}),
    ],
    ids=repr,
)
def test_printed_values_are_read_back_as_the_same_value(value):
    """By a shell, our entry point and Hydra."""
    [word] = (
        [f"key={to_text(value)}"]
        if isinstance(value, dict)
        else shlex.split(to_override("key", value))
    )
    [override] = parse([quote_text(word)])
    assert _plain(override.value()) == value


def _plain(value):
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    return getattr(value, "text", value)


def test_the_statements_of_this_python_are_known():
    """A new Python may bring a statement that binds names.

    Say here that it is not followed, or follow it.
    """
    followed = (
        "ClassDef FunctionDef AsyncFunctionDef Import ImportFrom Assign AnnAssign If Try With"
    )
    other_statements = (
        "Assert AsyncFor AsyncWith AugAssign Break Continue "
        "Delete Expr For Global Match Nonlocal Pass Raise Return"
        " TryStar TypeAlias While"
    )
    statements = {kind.__name__ for kind in ast.stmt.__subclasses__()}
    assert statements <= {*followed.split(), *other_statements.split()}, "see schema.source"


def test_typed_dicts_and_named_tuples_of_users_are_read(module):
    module(
        """
        from typing import NamedTuple, TypedDict

        class Limit(TypedDict, total=False):
            low: int
            high: float

        class Size(NamedTuple):
            path: str
            depth: int = 3

        def reward(limit: Limit | None = None): ...
        """
    )
    limit = read_signature("pkg.reward").parameters["limit"].type
    assert limit.accepts({"low": 1})
    assert limit.accepts(None)
    assert not limit.accepts({"lo": 1})
    assert not limit.accepts({"low": "x"})
    assert not limit.accepts("x")
    assert list(read_signature("pkg.Size").parameters) == ["path", "depth"]
