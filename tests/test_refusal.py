"""Refusals of TRL's own constructors, read from the source before anything is loaded.

None is made up.
"""

import shlex

import pytest

from runner.__main__ import main
from runner.schema import refusal
from runner.schema.refusal import Something, find_refusals

SOURCE = """
from dataclasses import dataclass

@dataclass
class Base:
    size: int = 4

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size is {self.size}")

class Config(Base):
    def __init__(self, args, other=None, rows=None):
        self.size = args.size
        half = args.size // 2
        if other is not None and isinstance(rows, (list, Rows)):
            raise TypeError("rows")
        for each in args.names:
            half = each
        if half == 1:
            raise ValueError("not known any more")
        if self.size > 8 or unheard_of(args):
            raise ValueError("large")
        if any(name in {"a", "b"} for name in args.names):
            raise NotImplementedError("a or b")
        if is_nowhere_to_be_found_available():
            raise ImportError("installed")
        if not is_torch_bf16_gpu_available():
            raise ValueError("a machine's feature is no package; a package may have another name")
        if not (0 <= args.share < 1):
            raise ValueError("a share")
        return
        raise ValueError("never")
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    (tmp_path / "refusing.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(refusal, "LIBRARY_PACKAGES", {"refusing"})


GOOD = {"args.size": 2, "args.names": ["c"], "args.share": 0.5, "other": None, "rows": None}


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, []),
        ({"args.size": 9}, ["large"]),
        ({"args.names": ["b"]}, ["a or b"]),
        ({"args.share": 1}, ["a share"]),
        ({"other": Something(), "rows": Something(frozenset({"Rows"}))}, ["rows"]),
        ({"other": Something(), "rows": Something(frozenset({"Others"}))}, []),
    ],
)
def test_an_error_is_foreseen_where_all_that_decides_it_is_known(source, changes, texts):
    assert [
        refusal.text for refusal in find_refusals("refusing.Config", "__init__", GOOD | changes)
    ] == texts


SHORT = """
class Short:
    def __init__(self, args):
        if args.{test}:
            return
        args = args if max([], default=1) == 1 and (0, 1) != [0, 1] else other
        if args.size == 2 or max([], default=3) == 3 or (0, 1) == [0, 1]:
            raise ValueError("wrong")
"""


@pytest.mark.parametrize("test", ["size == 2", "heard == 3", "size == 3"])
def test_code_after_a_return_and_assigned_errors_refuse_nothing(test, source, tmp_path):
    (tmp_path / "refusing.py").write_text(SHORT.format(test=test))
    assert not find_refusals("refusing.Short", "__init__", dict(GOOD))


def test_a_base_refuses_once_and_says_what_it_found(source):
    (fault,) = find_refusals("refusing.Config", "__post_init__", {"self.size": 0})
    assert (fault.text, fault.names) == ("size is 0", ("self.size",))


def test_a_text_that_cannot_be_known_is_dots(source, tmp_path):
    text = (
        "class Short:\n    def __init__(self, args):\n        raise ValueError(unheard_of(args))\n"
    )
    (tmp_path / "refusing.py").write_text(text)
    (fault,) = find_refusals("refusing.Short", "__init__", dict(GOOD))
    assert fault.text == "..."


OWN = """
from dataclasses import dataclass
import trl

class OwnTrainer(trl.DPOTrainer):
    def __init__(self, model, args=None, peft_config=None, **kwargs):
        args.sync_ref_model = self.is_synchronous(args)
        super().__init__(model, args=args, peft_config=peft_config, **kwargs)

@dataclass
class OwnConfig(trl.DPOConfig):
    share: float = 0.5

    def __post_init__(self):
        self.to_loss_types()
        if self.loss_type == ["exo_pair"]:
            raise ValueError("not any more")
        self.sync_ref_model = False
        super().__post_init__()
"""


@pytest.mark.slow
def test_a_constructor_of_the_users_own_may_mend_what_trl_refuses(tmp_path, monkeypatch):
    (tmp_path / "mending.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "trainer=dpo",
        "peft=lora",
        "allow=[mending]",
        "trainer.args.sync_ref_model=true",
        "--dry-run",
    ]
    assert main([*words, "trainer._target_=mending.OwnTrainer"]) == 0
    assert (
        main(
            [*words, "trainer.args._target_=mending.OwnConfig", "trainer.args.loss_type=[exo_pair]"]
        )
        == 0
    )


TEACHER = "trainer.teacher_model.path=runner://model/tiny"
REFUSED = [
    ("trainer=grpo trainer.args.sync_ref_model=true", "trainer.args.sync_ref_model=false"),
    ("trainer=dpo peft=lora trainer.args.sync_ref_model=true", "trainer.args.sync_ref_model=false"),
    (
        "trainer=kto trainer.args.per_device_train_batch_size=1",
        "trainer.args.per_device_train_batch_size=8",
    ),
    ("trainer=dpo trainer.args.loss_type=[exo_pair]", 'trainer.args.loss_type="[sigmoid]"'),
    (
        "trainer=dpo trainer.args.loss_type=[aot] trainer.args.use_weighting=true",
        "trainer.args.use_weighting=false",
    ),
    (
        "trainer=rloo trainer.args.auto_find_batch_size=true",
        "trainer.args.auto_find_batch_size=false",
    ),
    (
        f"trainer=gold {TEACHER} trainer.args.max_completion_length=2048",
        "trainer.args.max_completion_length=128",
    ),
    (f"trainer=iw_opd {TEACHER} trainer.args.lmbda=0.5", "trainer.args.lmbda=1.0"),
    (
        "trainer=ppo reward=length dataset.streaming=true "
        "trainer.args.max_steps=2 trainer.args.num_generations=2 "
        "trainer.args.dynamic_sampling=1",
        "trainer.args.dynamic_sampling=0",
    ),
    ("trainer=sdft dataset.streaming=true trainer.args.max_steps=2", "dataset.streaming=false"),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("words", "fix"), REFUSED, ids=[words for words, _ in REFUSED])
def test_trl_refuses_before_torch_is_imported_and_the_fix_works(words, fix, capsys):
    assert main([*words.split(), "--dry-run"]) == 2
    stderr = capsys.readouterr().err
    assert f"type      {fix}" in stderr
    assert "values that go together" in stderr
    remaining = [
        word for word in words.split() if not fix.endswith(f"{word.partition('=')[0]} out")
    ]
    assert (
        main([*remaining, *([] if fix.startswith("leave") else shlex.split(fix)), "--dry-run"]) == 0
    )


def test_every_value_of_a_field_that_lists_them_is_taken_whatever_the_code_compares_it_with(capsys):
    words = [
        "trainer.args.score_normalization=scale",
        "trainer.args.old_logprobs=recompute",
        "--dry-run",
    ]
    assert main(["trainer=ppo", "reward=length", *words]) == 0, capsys.readouterr().err
