"""Rewards in whole runs.

Each kind, several at once, and failures reported with reward, row and prompt.
"""

import http.server
import json
import threading

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from runner.io.files import shipped
from runner.run import Run
from runner.run.history import read_metrics, read_rollouts

TINY = shipped("runner://model/tiny")
FEW = ("trainer.args.max_steps=2", "trainer.args.logging_steps=1", "metric=none")
SMALL = ("dataset.limit.train=32", "dataset.limit.eval=8", "trainer.args.max_completion_length=12")

pytestmark = pytest.mark.slow


def scorer(folder, kind, labels):
    torch.manual_seed(labels)
    for part in (
        kind.from_pretrained(TINY, num_labels=labels),
        AutoTokenizer.from_pretrained(TINY),
    ):
        part.save_pretrained(folder)
    return folder


class Judge(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        lengths = [float(len(text[-1]["content"])) for text in body["completions"]]
        answer = json.dumps({"rewards": lengths}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def every_kind(tmp_path, url):
    """The words for one run with a reward of each kind."""
    models = {
        "model": scorer(tmp_path / "one" / "model", AutoModelForSequenceClassification, 1),
        "classifier": scorer(tmp_path / "three", AutoModelForSequenceClassification, 3),
        "process_model": scorer(tmp_path / "steps", AutoModelForTokenClassification, 2),
    }
    nodes = {
        "length": {"_target_": "runner.reward.rule.length", "target": 7},
        "format": {"_target_": "runner.reward.rule.format_match", "pattern": "[0-9 ]+"},
        "keywords": {"_target_": "runner.reward.rule.keywords", "required": "[1,2,3]"},
        "boxed_answer": {"_target_": "runner.reward.math.boxed_answer", "strict": "false"},
        "sorted_digits": {"_target_": "runner.reward.rule.sorted_digits", "weight": 2.0},
        "model": {
            "_target_": "runner.reward.outcome.load_reward_model",
            "path": models["model"],
            "weight": 0.1,
        },
        "classifier": {
            "_target_": "runner.reward.outcome.Classifier",
            "path": models["classifier"],
            "label": 2,
        },
        "process_model": {
            "_target_": "runner.reward.process.ProcessModel",
            "path": models["process_model"],
        },
        "remote": {"_target_": "runner.reward.remote.Remote", "url": url, "batch_size": 8},
    }
    nodes["keywords"]["required"] = "['1','2','3']"
    words = []
    for name, node in nodes.items():
        words += [f'reward.{name}.{key}="{value}"' for key, value in node.items()]
    plain = [word.replace('"', "") if "pattern" not in word else word for word in words]
    return list(nodes), ["reward=none", *plain]


@pytest.mark.grid(1)
@pytest.mark.parametrize("trainer", ["grpo", "rloo", "online_dpo", "ppo"])
def test_rewards_of_every_kind_are_logged_under_their_names(train, tmp_path, url, trainer):
    names, words = every_kind(tmp_path, url)
    length = (
        "trainer.args.response_length=12" if trainer == "ppo" else "trainer.args.max_new_tokens=12"
    )
    small = SMALL if trainer in ("grpo", "rloo") else (*SMALL[:2], length)
    done = train(f"trainer={trainer}", *words, *FEW, *small)
    assert (done.code, done.state()) == (0, "finished")
    line = next(line for line in done.lines if line["step"] == 1)
    prefix = "" if f"rewards/{names[0]}/mean" in line else "eval_"
    means = {name: line.get(f"{prefix}rewards/{name}/mean") for name in names}
    assert None not in means.values(), means
    assert all(line["grad_norm"] > 0 for line in done.lines if line["step"])
    assert -1 <= means["sorted_digits"] <= 1
    assert 0 <= means["process_model"] <= 1
    assert means["remote"] >= 0
    rollouts = read_rollouts(done.run.folder)
    assert [row["step"] for row in rollouts] == [1, 1, 1, 1, 2, 2, 2, 2]
    for row in rollouts:
        assert list(row["rewards"]) == names
        assert row["tokens"] <= 12
    if trainer == "grpo":  # of a prompt the best and the worst
        best, worst, *_ = rollouts
        assert best["prompt"] == worst["prompt"]
        assert best["advantage"] > 0 > worst["advantage"]
        assert best["reward"] > worst["reward"]


def test_ppo_learns_from_a_models_scores_of_steps(train, tmp_path):
    folder = scorer(tmp_path / "steps", AutoModelForTokenClassification, 2)
    words = (
        "reward=process_model",
        f"reward.process_model.path={folder}",
        "reward.process_model.aggregate=null",
    )
    same = ("reward.process_model.separator=' '", "trainer.args.step_separator=' '")
    done = train("trainer=ppo", *words, *same, *FEW, *SMALL[:2], "trainer.args.response_length=12")
    assert (done.code, done.state()) == (0, "finished")


WRONG = """
import math, time

def nan(completions, at, **columns):
    return [math.nan if row == at else 1.0 for row in range(len(completions))]

def short(completions):
    return [1.0]

def fails(completions):
    return [float(len(text[-1]["content"])) / 0 for text in completions]

def nothing(completions):
    return [None for _ in completions]

def steps(completions):
    return [[1.0, 2.0] for _ in completions]

def hangs(completions):
    time.sleep(60)

def absent(completions, solution):
    return [1.0 for _ in completions]
"""

CASES = [
    ("nan", ("reward.mine.at=3",), 3, "nan for completion 3 of 8"),
    ("short", (), 2, "1 rewards for 8 completions"),
    ("fails", (), 2, "raised ZeroDivisionError: float division by zero, for completion 0 of 8"),
    ("nothing", (), 2, "every reward returned None for completion 0 of 8, and for 7 more"),
    ("steps", (), 2, "a list of 2 for completion 0 of 8"),
    ("hangs", ("reward.mine.timeout=0.5",), 3, "no answer after 0.5 s for 8 completions"),
]


@pytest.mark.grid(3)
@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
@pytest.mark.parametrize(
    ("reward", "words", "code", "found"), CASES, ids=[case[0] for case in CASES]
)
def test_a_reward_that_goes_wrong_ends_the_run_with_its_name_row_and_prompt(
    train, tmp_path, monkeypatch, capsys, trainer, reward, words, code, found
):
    if trainer == "ppo" and reward == "steps":
        pytest.skip("PPO takes steps, and has a message of its own")
    (tmp_path / "wrong_rewards.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    size = tuple(f"trainer.args.per_device_{use}_batch_size=8" for use in ("train", "eval"))
    settings = (
        ("trainer.args.max_completion_length=8",)
        if trainer == "grpo"
        else ("trainer.args.response_length=8",)
    )
    mine = (
        "allow=[wrong_rewards]",
        "reward=none",
        f"reward.mine._target_=wrong_rewards.{reward}",
        "seed=1",
    )
    done = train(
        f"trainer={trainer}",
        *mine,
        *words,
        *FEW,
        *size,
        *settings,
        "dataset.limit.eval=8",
        "dataset.limit.train=32",
    )
    stderr = capsys.readouterr().err
    assert done.code == code
    assert done.state() == "failed"
    assert found in stderr
    assert "reward" in stderr
    assert "the prompt: 'Sort these digits: " in stderr


@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_a_reward_that_takes_what_no_row_has_is_refused_before_a_folder_is_made(
    train, tmp_path, monkeypatch, capsys, trainer
):
    (tmp_path / "wrong_rewards.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    mine = ("allow=[wrong_rewards]", "reward=none", "reward.mine._target_=wrong_rewards.absent")
    mine += ("reward.exact._target_=runner.reward.rule.exact_match", "reward.exact.column=answer")
    done = train(f"trainer={trainer}", *mine, *FEW)
    stderr = capsys.readouterr().err
    assert done.code == 2
    assert done.run is None
    assert "it takes solution, but the rows have no such column" in stderr
    assert "reward.mine" in stderr
    assert "type      reward.exact.column=<column>" in stderr


REFUSED = [
    (("reward=length", "reward.length.taget=3"), "target"),
    (("reward=exact_match", "reward.exact_match.colum=answer"), "column"),
    (("reward=length", "reward.length.timeout=soon"), "reward.length.timeout"),
    (("reward=format", "reward.format.pattern='(a'"), "regular expression"),
    (("reward=remote",), "reward.remote.url"),
]


@pytest.mark.parametrize(("words", "finding"), REFUSED, ids=[case[0][-1] for case in REFUSED])
def test_a_misspelt_or_wrong_key_of_a_reward_is_a_fault(train, words, finding, capsys):
    assert train("trainer=grpo", *words).code == 2
    assert finding in capsys.readouterr().err


NAMED = ("reward=none", "trainer.args.reward_model_path")
IN_THE_GROUP = ("reward=model", "reward.model.path")


@pytest.mark.parametrize(("group", "key"), [NAMED, IN_THE_GROUP])
def test_a_model_without_a_trained_score_head_rewards_only_where_that_is_allowed(
    runner, group, key
):
    words = (
        "trainer=ppo",
        group,
        f"{key}=runner://model/tiny",
        *FEW,
        *SMALL[:2],
        "trainer.args.response_length=8",
    )
    refused = runner(*words, code=2)
    assert f"{key}\n" in refused.stderr
    assert "it has no weights for score.weight" in refused.stderr
    assert "tolerate.random_head=true" in refused.stderr
    assert not runner.runs("default")
    runner(*words, "tolerate.random_head=true", "name=run")
    [folder] = runner.runs("run")
    assert Run(folder).status()["state"] == "finished"


def test_a_reward_model_by_name_adds_to_those_of_the_group(train, tmp_path):
    folder = scorer(tmp_path / "judge", AutoModelForSequenceClassification, 1)
    words = (f"trainer.args.reward_model_path={folder}", "reward.sorted_digits.weight=2.0")
    done = train("trainer=ppo", *words, *FEW, *SMALL[:2], "trainer.args.response_length=8")
    line = next(line for line in done.lines if line["step"] == 1)
    by_hand = 2.0 * line["rewards/sorted_digits/mean"] + line["rewards/judge/mean"]
    assert done.code == 0
    assert line["objective/scores"] == pytest.approx(by_hand, abs=1e-4)


def test_an_address_or_token_in_a_file_is_not_used_unless_it_was_typed(train, tmp_path, capsys):
    (tmp_path / "conf" / "reward").mkdir(parents=True)
    node = (
        "remote:\n  _target_: runner.reward.remote.Remote\n"
        "  url: https://there/x\n  token_variable: HOME\n"
    )
    (tmp_path / "conf" / "reward" / "theirs.yaml").write_text(node)
    assert train("--config-dir", str(tmp_path / "conf"), "trainer=grpo", "reward=theirs").code == 2
    stderr = capsys.readouterr().err
    assert "sends prompts and completions to a server" in stderr
    assert "sends a variable of the environment" in stderr


def test_a_server_that_is_away_ends_the_run_and_no_secret_is_written(
    train, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("JUDGE_TOKEN", "the-secret-of-this-test")
    words = (
        "reward=remote",
        "reward.remote.url=http://127.0.0.1:9/",
        "reward.remote.token_variable=JUDGE_TOKEN",
    )
    done = train("trainer=grpo", *words, "reward.remote.retries=0", *FEW, *SMALL)
    assert done.code == 5
    assert "gave no answer to completions" in capsys.readouterr().err
    texts = [path.read_bytes() for path in done.run.folder.rglob("*") if path.is_file()]
    assert texts
    for text in texts:
        assert b"the-secret-of-this-test" not in text
    assert read_metrics(done.run.metrics) == []
