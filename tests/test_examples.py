"""Small functions whose name says what they do, each by an example."""

import pytest
from torch import Tensor

from runner import metric
from runner.command._inference import to_file_name
from runner.config.conversion import plain
from runner.config.dialect import is_wanted
from runner.config.experiment import Tolerate
from runner.config.machines import processes_of
from runner.config.override import latest, refused
from runner.dataset.conversation import is_finite_number
from runner.dataset.form import answer_columns
from runner.dataset.head import shortest
from runner.dataset.request import slice_length, split_words
from runner.dataset.step import fill
from runner.generate.budget import answer_tokens
from runner.generate.judge import _mean_and_error
from runner.generate.padding import split_by_rows, split_by_tokens
from runner.io.distribution import to_install
from runner.io.files import strict
from runner.io.filetype import sniff
from runner.io.secrets import form_of
from runner.io.terminal import line_of
from runner.io.turns import text_of
from runner.launch.slurm import seconds_of
from runner.metric import likelihood
from runner.metric.ask import kind_of, to_numbers
from runner.metric.binary import grouped_auc, pairs
from runner.ppo.batching import fill_by_tokens
from runner.report.axis import axes_of, short_target
from runner.report.card import is_hub_name
from runner.report.drawing import Curve, thinned
from runner.report.facts import changed_files
from runner.report.number import format_duration, format_spread, format_value, plural, short
from runner.report.render import breakable
from runner.reward import math, process, rule
from runner.run import is_shaped
from runner.run.adjustments import adjusted_share, in_words, is_out_of_memory
from runner.run.alarms import steps_to_notice
from runner.run.disk import sized
from runner.run.history import curve, is_finite
from runner.run.key import canonical_text, folder_of
from runner.run.record import format_time
from runner.run.seal import checkpoints_at_once, describe_damage
from runner.schema.literal import number, to_text
from runner.schema.text import flatten, last_key, short_text
from runner.schema.type import shortened
from runner.schema.upstream import completion_length, passes
from runner.training.checkpoint import state_bytes
from runner.training.extension import mean_loss

NAMES = ("adamw_torch", "adamw_8bit", "lion_32bit", "adafactor", "sgd")
LOGGED = [{"step": 2, "loss": 3.0}, {"step": 2, "eval_loss": 9.0}, {"step": 3, "loss": 6.0}]
ARGS = {"max_steps": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
BOXED = [r"so \boxed{\frac{1}{2}}.", "0.5", r"\boxed{3}"]
WORDS = {"input": "Who are you?", "target": "I am {{NAME}}, by {{ AUTHOR }}."}
REVIEWS = ["A lovely bar. We loved it.", "awful", "Great, great, GREAT, great!", "a bar"]
SCORES = [0.9, 0.1, 0.2, 0.8, 0.5]
CUTS = ("train[10:]", "train[:3]", "train[90%:]", "train", "train[:1]+test")
KEYS = {"required": ["red", "the red"], "forbidden": ["dog"]}
PLACES = {"of": ["place", "topic"], "place": ["bar", "bar"], "topic": ["view", "food"]}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([is_finite_number(value) for value in ("-0.5", True, None)], [True, False, False]),
        (answer_columns({"prompt": "1+1=", "completion": "2"}), ("completion",)),
        (answer_columns({"prompt": "1+1="}), ()),
        (
            shortest([{"text": "long enough"}, {"text": "a"}, {"text": "bc"}], 2),
            [{"text": "a"}, {"text": "bc"}],
        ),
        (
            fill(WORDS, {"NAME": "Ada"}),
            {"input": "Who are you?", "target": "I am Ada, by {{ AUTHOR }}."},
        ),
        ([state_bytes(name, [Tensor(4, 8)]) for name in NAMES], [256, 64, 128, 48, 0]),
        (mean_loss(LOGGED), 4.0),
        (split_by_rows([3, 9, 3, 5], size=2), [[1, 3], [0, 2]]),
        ((answer_tokens([None, 256], 32), answer_tokens([None], None)), (256, 64)),
        (_mean_and_error([1.0, float("nan"), 3.0]), (2.0, 1.0)),
        (math.boxed_answer(BOXED, reference=["0.5", "0.5", "#### 4"]), [1.0, 0.0, 0.0]),
        (
            process.sorted_steps(["1 3 9 7", "1 3"], ["7 3 9 1"] * 2),
            [[0.25, 0.25, 0.0, 0.0], [0.25, -0.25]],
        ),
        (process.to_steps("add 2\n\n so 4", "\n"), ["add 2", "so 4"]),
        (process.aggregate([0.5, 0.25, 0.75], "product"), 0.09375),
        (rule.distinct_characters(["abca", ""]), [3.0, 0.0]),
        ((rule.length(["abc"]), rule.length(["abc"], target=5)), ([3.0], [-2.0])),
        (
            rule.exact_match([" Paris. ", "Rome", "Oslo"], "city", city=["paris", "Bern", None]),
            [1.0, 0.0, None],
        ),
        (rule.sorted_digits(["1 3 7 9", "1 3 9 7", "1 3"], ["7 3 9 1"] * 3), [1.0, 0.5, 0.0]),
        (rule.sentiment(REVIEWS), [0.5, -0.25, 1.0, 0.0]),
        (rule.format_match(["<think>2+2</think>4", "4"], r"<think>.*</think>\s*\d+"), [1.0, 0.0]),
        (rule.keywords(["The Red cat", "a dog", "reddish"], **KEYS), [1.0, -1.0, 0.0]),
        (processes_of({"launcher": {"num_processes": 4, "num_machines": 2}}), 8),
        (latest(["seed=1", "kl_coef=0.1", "++seed=2"]), ["kl_coef=0.1", "++seed=2"]),
        (
            (refused("hydra.launcher.n_jobs"), refused("hydra.callbacks.x")[:17]),
            ("", "hydra.callbacks.x"),
        ),
        ((short_text("a\nb"), last_key("dataset.files.0")), ("'a\\nb'", "files")),
        (
            (completion_length({"max_new_tokens": 64}), completion_length({"max_length": 64})),
            (64, None),
        ),
        (passes(ARGS, 16, 1), 4.0),
        (metric.words(["The bar was so-so.", ""]), [5.0, 0.0]),
        (metric.repetition(["great, great, great bar", "a bar", ""]), [0.5, 0.0, 0.0]),
        (metric.mention(["The food at the bar.", "Great!"], **PLACES), [0.5, 0.0]),
        (
            metric.overlap(["a red dog", "A.", "", "a"], ["the red dog", "a", "a", None]),
            [2 / 3, 1.0, 0.0, None],
        ),
        (likelihood.loss([[-1.0, -2.0], [-6.0], []]), 3.0),
        (strict({"loss": float("nan"), "steps": [1, 2.5]}), {"loss": None, "steps": [1, 2.5]}),
        (
            (sniff(b"PK\x03\x04", "rows.jsonl").found, sniff(b'{"a": 1}', "rows.jsonl")),
            ("a zip archive", None),
        ),
        (form_of("https://me:pa55word@host/rows.jsonl"), "an address with a password"),
        (form_of("sk-learn/contributions-of-2024"), ""),
        (
            text_of([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]),
            "2",
        ),
        (to_file_name("../easy rows"), "easy-rows"),
        ([slice_length(cut, 4) for cut in CUTS], [0, 3, 0, 4, None]),
        (split_by_tokens([0, 1, 2, 3], lengths=[20, 90, 40, 39], budget=80), [[1], [2, 3], [0]]),
        (pairs([2.0, 1.0, 0.0, 3.0], label=[True, False, True, False]), {"": 0.5, "margin": -1.0}),
        (
            (to_numbers("size", [1.0, None, 2.0], 3), to_numbers("bleu", 31.5, 3)),
            ({"": 1.5}, {"": 31.5}),
        ),
        (
            split_words(share=80),
            "dataset.split.train='train[:80%]' dataset.split.eval='train[80%:]'",
        ),
        (
            [
                is_wanted(*condition)
                for condition in ((True, "true"), (0, ["disabled"]), ("x", "enabled"))
            ],
            [True] * 3,
        ),
        ((is_wanted(None, [None, "bnb"]), is_wanted("x", ["y"])), (True, False)),
        (math.find_answer(r"\boxed{1}, no, \boxed{\frac{1}{2}}"), r"\frac{1}{2}"),
        ((math.find_answer("Answer: 7"), math.find_answer("7", strict=False)), (None, "7")),
        (shortened(["sigmoid", "hinge", "ipo"], 18), "sigmoid, ... (3)"),
        (to_install("math-verify"), "pip install 'math-verify>=0.9'  (the extra math)"),
        (to_install("liger-kernel"), "pip install liger-kernel"),
        ((line_of("one\ntwo", 9), line_of("one two three", 9)), ("one two", "one tw...")),
        (line_of("one two three", 9, tail=True), "... three"),
        (fill_by_tokens([0, 1, 2, 3], lengths=[20, 50, 40, 39], budget=80), [[1, 0], [2, 3]]),
        (
            grouped_auc(SCORES, user_id=["a", "a", "b", "b", "c"], label=[1, 0, 1, 0, 1])[
                "skipped"
            ],
            1.0,
        ),
        (
            [kind_of(columns) for columns in (["completions"], ["scores", "label"], ["path"])],
            ["sampled", "read", "sampled"],
        ),
        (
            (
                format_spread(0.62499, 0.08839),
                format_spread(0.5, None),
                format_spread(1234.5, 123.4),
                format_spread(0.5, 0.0),
                format_spread(0.69134, 2e-6),
            ),
            ("0.625 ± 0.088", "0.5", "1234 ± 123", "0.5 ± 0", "0.6913 ± 2e-6"),
        ),
        (
            (
                format_value(1e-06),
                format_value(None),
                format_value(["q", "v"]),
                format_value("a, b"),
                format_value({"_target_": "peft.LoraConfig", "r": 16}),
            ),
            ("1e-6", "null", "[q,v]", "a, b", "LoraConfig(r=16)"),
        ),
        (short("kl_coef-0.05+learning_rate-0.0001", 16), "kl_coef-…-0.0001"),
        ((plural(1, "run"), plural(2, "run")), ("1 run", "2 runs")),
        (
            (format_duration(7.2), format_duration(75), format_duration(7500)),
            ("7 s", "1:15", "2:05 h"),
        ),
        (
            [
                (axis.name, axis.also)
                for axis in axes_of(
                    [{"kl_coef": k, "trainer": {"args": {"beta": k}}} for k in (1, 2)]
                )
            ],
            [("kl_coef", ("trainer.args.beta",))],
        ),
        (
            (
                short_target({"_target_": "trl.DPOTrainer"}),
                short_target({"exact": {}, "words": {}}),
                short_target(None),
            ),
            ("DPO", "exact+words", "none"),
        ),
        (
            (
                is_hub_name("org/name"),
                is_hub_name("runner://model/tiny"),
                is_hub_name("/models/base"),
                is_hub_name("a/b/c"),
            ),
            (True, False, False, False),
        ),
        (
            [
                (file.name, file.added, file.removed)
                for file in changed_files("diff --git a/x.py b/x.py\n@@ -1 +1 @@\n-a\n+b")
            ],
            [("x.py", 1, 1)],
        ),
        (thinned(Curve([1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0]), 2), Curve([1.5, 3.5], [0.5, 2.5], [])),
        (str(breakable("a_b/<c>")), "a_<wbr>b/<wbr>&lt;c&gt;"),
        (
            (
                is_shaped({"step": 1, "versions": {"trl": None}}),
                is_shaped({"step": "1"}),
                is_shaped({"versions": ["trl"]}),
            ),
            (True, False, False),
        ),
        (
            adjusted_share(
                [{"kind": "rollback", "from_step": 30}, {"kind": "halving", "from_step": 40}], 30
            ),
            0.5,
        ),
        (
            in_words({"kind": "rollback", "step": 37, "from_step": 30, "cause": "the loss is nan"}),
            "step 37: the loss is nan; again from step 30 with half the learning rate",
        ),
        (
            is_out_of_memory(
                RuntimeError(
                    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"
                )
            ),
            True,
        ),
        ((steps_to_notice(), steps_to_notice(Tolerate.read({"kl": 20}))), (6, 21)),
        (
            (sized(0), sized(512), sized(41_500), sized(16_540_000_000), sized(494_032_768, "")),
            ("0 bytes", "512 bytes", "41.5 kB", "16.5 GB", "494 M"),
        ),
        (canonical_text({"b": [1.0, 0.5], "a": True}), '{"a": true, "b": [1, 0.5]}'),
        (
            str(folder_of({"output_root": "outputs", "name": "a"}, ["seed=1"])),
            "outputs/a/seed-1-44136fa355",
        ),
        (
            curve([{"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": None}], "loss"),
            ([1], [2.0]),
        ),
        (
            [is_finite(entry) for entry in (1, 0.5, float("nan"), True, None, 10**400)],
            [True, True, False, False, False, False],
        ),
        (format_time("2026-11-20T17:28:06+00:00"), "2026-11-20 17:28 UTC"),
        (
            describe_damage({"optimizer.pt": "missing", "config.json": "3 of 9 bytes"}),
            "optimizer.pt: missing; config.json: 3 of 9 bytes",
        ),
        ([checkpoints_at_once(2, 6, "steps", every, 1000) for every in (100, 5, 1)], [3, 4, 5]),
        (flatten({"a": {"b": [7], "c": {}}}), {"a.b": [7], "a.c": {}}),
        (to_text([0.1, None, "a, b", True]), "[0.1,null,'a, b',true]"),
        (
            (number(0.123456), number(12.0), number(1e-06), number(495104), number(None)),
            ("0.1235", "12", "1e-6", "495104", "-"),
        ),
        (
            [seconds_of(time) for time in (90, "90:30", "4:00:00", "1-12", "1-12:30", "1h", None)],
            [5400, 5430, 14400, 129600, 131400, None, float("inf")],
        ),
        (
            (plain("2e-5"), plain("true"), plain("a"), plain('{"min_lr": 1e-6}')),
            (2e-05, True, "a", {"min_lr": 1e-06}),
        ),
    ],
)
def test_an_example_gives_what_it_says(result, expected):
    assert result == expected
