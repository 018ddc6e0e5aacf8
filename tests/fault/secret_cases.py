"""Ways to give a secret to a run, and what only looks like one, as data. No code."""

from __future__ import annotations

# Each is a value that one of the ways passes; none is a real secret.
HUB = "hf_" + "aQ7zK3" * 6
KEY = "sk-proj-" + "Zx9Yw8Vu7T" * 3
PLAIN = "Correct-Horse-4711/=+"  # of no known form
GITHUB = "ghp_" + "b1C2d3E4" * 4
PASSWORD = "p4ssw0rd-of-mine"
OTHER = "7f3a9c0e5b1d8246" * 2
QUOTED = 'it\'s "4711" of mine \\o/'
PEM = "MIIEowIBAAKCAQEA7b1xQz9pLm4Tt8s"  # a line of a private key
FOREIGN = "glpat-" + "c5D6e7F8" * 3  # in no variable
SECRETS = {
    "HUB": HUB,
    "KEY": KEY,
    "PLAIN": PLAIN,
    "GITHUB": GITHUB,
    "PASSWORD": PASSWORD,
    "OTHER": OTHER,
}
SECRETS |= {"QUOTED": QUOTED, "PEM": PEM, "FOREIGN": FOREIGN}

# The environment of a process; none of its values may be written.
ENVIRONMENT = {
    "HF_TOKEN": HUB,
    "WANDB_API_KEY": OTHER,
    "OPENAI_API_KEY": KEY,
    "MY_TOKEN": PLAIN,
    "GITHUB_TOKEN": GITHUB,
    "MAIL_PASSWORD": QUOTED,
    "DEPLOY_KEY": (
        f"-----BEGIN RSA PRIVATE KEY-----\n{PEM}\n{PEM[::-1]}\n-----END RSA PRIVATE KEY-----\n"
    ),
    "DATABASE_URL": f"postgresql://me:{PASSWORD}@127.0.0.1:1/x",
}

# Ways that are refused before anything is written, as words; a text in the second place is an
# experiment's YAML.
REFUSED: dict[str, tuple[list[str], str]] = {
    "hub_token typed": ([f"trainer.args.hub_token={HUB}"], ""),
    "hub_token of no form": (["trainer.args.hub_token=abcd"], ""),
    "hub_token by a variable": (["trainer.args.hub_token=${oc.env:MY_TOKEN}"], ""),
    "a neutral key by a variable": (["trainer.args.run_name=${oc.env:MY_TOKEN}"], ""),
    "inside of a text": (["trainer.args.run_name='run of ${oc.env:MY_TOKEN}'"], ""),
    "the name of the run": (["name=${oc.env:MY_TOKEN}"], ""),
    "a default of a variable": (["name=${oc.env:NOBODY,${oc.env:WANDB_API_KEY}}"], ""),
    "model_init_kwargs.token": ([f"trainer.args.model_init_kwargs={{token: {HUB}}}"], ""),
    "model_init_kwargs.token of no form": (
        ["trainer.args.model_init_kwargs={token: whatever-it-is}"],
        "",
    ),
    "model.token": ([f"model.token={HUB}"], ""),
    "a misspelt key": ([f"trainer.args.hub_tokn={HUB}"], ""),
    "a strange key": ([f"+{HUB}=1"], ""),
    "a key inside": ([f"trainer.args.lr_scheduler_kwargs={{{KEY}: 1}}"], ""),
    "a broken word": ([f"trainer.args.hub_token={HUB}{{"], ""),
    "a word that Hydra refuses": ([f"trainer.args.hub_token={HUB}", "trainer=no"], ""),
    "an address of rows": (
        ["dataset=hub", f"dataset.path=https://me:{PASSWORD}@example.org/rows.jsonl"],
        "",
    ),
    "an address with a key": (
        ["dataset=hub", f"dataset.path='https://example.org/r?token={OTHER}'"],
        "",
    ),
    "an address of a model": (["model=hub", f"model.path=https://{GITHUB}@github.com/o/n"], ""),
    "an address of a reward": (
        ["trainer=grpo", "reward=remote", f"reward.remote.url=https://me:{PASSWORD}@example.org"],
        "",
    ),
    "a header of a reward": (
        [
            "trainer=grpo",
            "reward=remote",
            "reward.remote.url=https://e.org",
            f"+reward.remote.headers={{Authorization: {KEY}}}",
        ],
        "",
    ),
    "a variable of a tracker": ([f"+tracker.environment={{WANDB_API_KEY: {OTHER}}}"], ""),
    "a password of a tracker": (["+tracker.environment={MLFLOW_TRACKING_PASSWORD: horse}"], ""),
    "a token as a number": (["trainer.args.hub_token=12345678"], ""),
    "a tag of a tracker": (["tracker=tensorboard", f"tracker.tags=[{KEY}]"], ""),
    "a sweep": (["-m", "seed=0,1", f"trainer.args.hub_token={HUB}"], ""),
    "an axis": (["-m", f"trainer.args.run_name={HUB},{KEY}"], ""),
    "storage of a sweeper": (
        [
            "-m",
            "seed=0,1",
            "hydra/sweeper=optuna",
            f"hydra.sweeper.storage='postgresql://me:{PASSWORD}@h/d'",
        ],
        "",
    ),
    "a file, written out": (["experiment=x"], f"trainer: {{args: {{hub_token: {HUB}}}}}"),
    "a file, by a resolver": (
        ["experiment=x"],
        "trainer: {args: {hub_token: '${oc.env:MY_TOKEN}'}}",
    ),
    "a file, by two": (["experiment=x"], "name: ${oc.decode:${oc.env:GITHUB_TOKEN}}"),
    "a stage": (["experiment=x"], f"stages: {{a: [trainer.args.hub_token={HUB}]}}"),
    "words of predict": (
        [
            "predict",
            "model=tiny",
            f"dataset.path=https://me:{PASSWORD}@e.org/x",
            "dataset.form=text",
        ],
        "",
    ),
    "words of evaluate": (["evaluate", "model=tiny", f"model.revision={HUB}", "dataset=toy"], ""),
    "an address for an option": ([f"trainer=https://me:{PASSWORD}@example.org/x"], ""),
    "an address for a file": (["import", f"https://me:{PASSWORD}@example.org/x.yaml"], ""),
    "a place to write to": (["evaluate", "model=tiny", "dataset=toy", f"to={HUB}"], ""),
    "words of preview": (["preview", f"trainer.args.hub_token={HUB}"], ""),
    "--cfg job --resolve": (
        ["--cfg", "job", "--resolve", "trainer.args.hub_token=${oc.env:MY_TOKEN}"],
        "",
    ),
}

# Words of a good configuration, none of which is a secret.
HARMLESS = [
    ["dataset=hub", "dataset.path=sk-learn/toy", "dataset.form=text"],
    [
        "dataset=hub",
        "dataset.path=someone/sk-learn_contributions-of-2024-in-english",
        "dataset.form=text",
    ],
    ["dataset=hub", "dataset.path=org/hf_helpfulnessandharmlessness", "dataset.form=text"],
    ["dataset=hub", "dataset.path=org/secret-santa-password-letters", "dataset.form=text"],
    ["dataset=hub", "dataset.path=hf://datasets/org/name@main/rows.parquet", "dataset.form=text"],
    [
        "dataset=hub",
        "dataset.path='https://example.org/data/rows.jsonl?download=true'",
        "dataset.form=text",
    ],
    ["model=hub", "model.path=org/model-7ae557604adf67be50417f59c2c2f167def9a775"],
    ["model=hub", "model.path=org/x", "model.revision=7ae557604adf67be50417f59c2c2f167def9a775"],
    ["model=hub", "model.path=/models/0f343b0931126a20f133d67c2b018a3b/checkpoint-1000"],
    ["model.tokenizer.eos_token='<|im_end|>'"],
    ["model.tokenizer.pad_token=endoftext"],
    ["model.tokenizer.pad_token='[PAD]'"],
    ["trainer.args.eos_token='<|endoftext|>'"],
    ["trainer=ppo", "trainer.args.stop_token=eos"],
    ["trainer=grpo", "reward=sorted_digits", "trainer.args.mask_truncated_completions=true"],
    [
        "trainer=grpo",
        "dataset=toy_sort",
        "reward=format",
        r"reward.format.pattern='^(?:https?://[^:]+:[^@]+@)?\S+$'",
    ],
    ["trainer.args.run_name=tokens-per-second-and-max_tokens-1024"],
    ["trainer.args.run_name='the bearer of bad news'"],
    ["trainer.args.run_name=basic-arithmetic-2024"],
    ["trainer.args.run_name=key-value-cache"],
    ["name=token-budget"],
    ["name=secret_sharing"],
    ["trainer.args.model_init_kwargs={token: true}"],
    ["trainer.args.hub_model_id=me/authorization-model"],
    ["trainer.args.chat_template_path=templates/with_token.jinja"],
    ["tracker=tensorboard", "tracker.tags=[password-game, api-docs]"],
    ["callback=early_stopping"],
]

# Lines of a diff, each with whether it is kept as it is.
LINES = [
    (f'+HF_TOKEN = "{HUB}"', False),
    (f"+export OPENAI_API_KEY={KEY}", False),
    (f'+    client = Client(password="{PASSWORD}")', False),
    (f"+api_key: '{OTHER}'", False),
    (f"+login = 'ya29.{'a0AfH6SM-' * 5}'", False),
    (f"+    return 'sk-ant-api03-{'aB3-xY9_' * 8}'", False),
    (f"+url = 'https://me:{PASSWORD}@example.org/x'", False),
    (f"+  Authorization: Bearer {OTHER}", False),
    ('+eos_token = "<|im_end|>"', True),
    ('+tokenizer.pad_token = "[PAD]"', True),
    ("+max_tokens = 16384", True),
    ("+token = tokenizer.eos_token", True),
    ("+for token in tokens: secret += len(token)", True),
    ('+    pattern = r"(?:https?://[^:]+:[^@]+@)?"', True),
    (
        "+index 7ae557604adf67be50417f59c2c2f167def9a775..0f343b0931126a20f133d67c2b018a3b100644",
        True,
    ),
]
