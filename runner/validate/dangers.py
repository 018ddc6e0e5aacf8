"""Values that run, send, publish, write elsewhere or reveal something: typed by the user, or refused."""

import re
from collections.abc import Callable, Collection, Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from runner.errors import Fault
from runner.io.secrets import LOGIN_KEY, MIXED_TEXT, SECRET_KEY, form_of, hidden, holder_of, names_secret
from runner.schema import upstream
from runner.schema.text import Config, last_key, scalars, short_text, to_override
from runner.validate.values import by_name


def _is_elsewhere(value: object) -> bool:
    """True where an address, or a host with or without a port, may be that of another machine.

    Where clients read one differently, as with a backslash or a number of another base, it may be.
    """
    if not (text := str(value or "")) or text.lower() == "localhost" or _is_loopback(text):
        return False
    try:
        # Clients put http:// before all else, so that of evil.com://127.0.0.1 the first part is the host.
        address = urlsplit(text if re.match("(?i)https?://", text) else f"//{text}").netloc.rpartition("@")[2]
    except ValueError:
        return True
    host = re.fullmatch(r"\[([^\[\]]+)\](?::\d*)?|([^\[\]:]+)(?::\d*)?", address)
    name = host[1] or host[2] if host else ""
    return not text.isprintable() or "\\" in text or not (name.lower() == "localhost" or _is_loopback(name))


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _is_outside(path: object) -> bool:
    """True for a path that leads out of the folder where it begins."""
    return isinstance(path, str) and (path.startswith(("/", "~")) or ".." in path.split("/"))


def _leaves_the_run(store: object) -> bool:
    """True for a store of MLflow that is no database or folder below where the command is run, or in ``{root}``."""
    found = re.fullmatch(r"(?:sqlite:///|file:|file://(?=\{))([^/].*)", str(store))
    return not found or _is_outside(found[1])


VARIABLE = "tracker.environment."
HARMLESS_VARIABLES = re.compile(
    "WANDB_(PROJECT|ENTITY|NAME|NOTES|TAGS|JOB_TYPE|RUN_GROUP|RUN_ID|RESUME|SILENT|QUIET|CONSOLE|WATCH|LOG_MODEL)"
    "|WANDB_(DISABLED|INIT_TIMEOUT|DISABLE_CODE|DISABLE_GIT)"
    "|MLFLOW_(EXPERIMENT_NAME|FLATTEN_PARAMS|MAX_LOG_PARAMS|NESTED_RUN|RUN_ID|RUN_NAME|TAGS)"
)
STAYS = ("offline", "disabled", "dryrun")
UPLOADING = {"all", "wandb", "comet_ml", "neptune", "clearml", "swanlab", "azure_ml", "dagshub", "flyte"}
CODE, PICKLE, KERNEL = "runs code of others", "loads pickles, which can run code", "runs a kernel from the hub"
SENDS_TEXTS = "sends prompts and completions to a server"
SENDS_METRICS = "sends the figures to a server"
OUTSIDE = "writes outside of the run"
Risk = tuple[Callable[[Any], bool], str]  # which values of a key are risky, and what they do
NO_RISK: Risk = (lambda value: False, "")

# Each of these keys needs its own flag on the command line.
RISKS: dict[str, Risk] = by_name(
    {
        (lambda value: value is True, CODE): ["trust_remote_code"],
        (bool, CODE): ["custom_generate"],
        (lambda value: value is False, PICKLE): ["safetensors_only", "use_safetensors", "weights_only"],
        (lambda value: value is True, KERNEL): ["use_kernels"],
        (lambda value: "/" in str(value), KERNEL): ["attention", "attn_implementation", "experts_implementation"],
        (lambda value: value is True, "publishes the model"): [upstream.PUSH_TO_HUB],
        (bool, "publishes completions"): [upstream.LOG_COMPLETIONS_HUB_REPO],
        (bool, "publishes the metrics"): [
            *(upstream.TRACKIO_SPACE_ID, upstream.TRACKIO_STATIC_SPACE_ID, upstream.TRACKIO_BUCKET_ID),
            "TRACKIO_SPACE_ID",
        ],
        (bool, SENDS_TEXTS): ["url"],
        (_is_elsewhere, SENDS_TEXTS): [
            *("vllm_server_base_url", upstream.TEACHER_MODEL_SERVER_URL, upstream.TEACHER_SERVER_URLS),
        ],
        # A host alone, before which clients put http:// whatever it is.
        (lambda value: "/" in str(value or "") or _is_elsewhere(value), SENDS_TEXTS): [upstream.VLLM_SERVER_HOST],
        (bool, "sends a variable of the environment to a server"): ["token_variable"],
        (bool, "sends all that is loaded through another machine"): ["proxies"],
        (_is_outside, OUTSIDE): ["folder", "cache_dir", "offload_folder", "offload_dir"],
    }
)
# The same of the variables of a tracker, of which the choice of one speaks, too.
VARIABLES: dict[str, Risk] = by_name(
    {
        (lambda value: value not in STAYS, SENDS_METRICS): ["WANDB_MODE"],
        (_is_elsewhere, SENDS_METRICS): ["WANDB_BASE_URL"],
        (_leaves_the_run, "sends the figures to a server, or writes outside of the run"): ["MLFLOW_TRACKING_URI"],
        (bool, CODE): ["WANDB__EXECUTABLE"],
        (_is_outside, OUTSIDE): [
            *("TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR", "WANDB_DIR"),
            *("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"),
        ],
    }
)


def find_risks(cfg: Config, typed: Collection[str] = ()) -> Iterator[Fault]:
    """A fault for each value that runs, sends or writes something elsewhere and was not typed by the user.

    A flag counts for the nodes inside its own: ``model.trust_remote_code=true`` is also for ``model.tokenizer``. So
    does a fault, which is not given twice.
    """
    tracker = cfg.get("tracker") if isinstance(cfg, dict) else None
    variables = tracker.get("environment") if isinstance(tracker, dict) else None
    stays = isinstance(variables, dict) and variables.get("WANDB_MODE") in STAYS
    counted, expected = set(typed), "such a key on the command line only"
    for path, value in scalars(cfg):
        key, words, where = last_key(path), path.split(".")[:-1], re.sub(r"\.\d+$", "", path)
        is_risky, danger = RISKS.get(key, NO_RISK)
        around = {".".join([*words[:depth], key]) for depth in range(1, len(words) + 1)} or {key}
        if is_risky(value) and not counted & around:
            counted.add(path)
            found = f"{key}: {short_text(value)} {danger}, and was not typed"
            yield Fault(path, found, expected, f"{to_override(path, value)}  (if you trust where it leads)")
        is_risky, danger = NO_RISK
        if path.startswith(VARIABLE) and not HARMLESS_VARIABLES.fullmatch(key) and not names_secret(key):
            is_risky, danger = VARIABLES.get(key, (bool, "may lead the tracker elsewhere"))
        if key == "report_to" and value in UPLOADING and not (value == "wandb" and stays):
            is_risky, danger = bool, SENDS_METRICS
        if is_risky(value) and not {"tracker", where} & set(typed):
            found = f"{key}: {value} {danger}, and was not typed"
            yield Fault(path, found, expected, f"tracker=<name>, or {where}={value}  (if you want that)")


# --- Secrets ----------------------------------------------------------------------------------------


def find_secrets(cfg: Config) -> Iterator[Fault]:
    """A fault for each text that is, or is called, a secret; the text itself is never repeated."""
    for path, value in scalars(cfg):
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            continue
        if found := _secret_in(path, last_key(path), str(value), isinstance(value, str)) or form_of(path):
            variable = holder_of(str(value)) or ("WANDB_API_KEY" if "wandb" in path.lower() else "HF_TOKEN")
            found, expected = f"{found}, and a config is kept as plain text", "secrets in the environment only"
            yield Fault(hidden(path), found, expected, f"export {variable}=...  (and leave the key out)")


def _secret_in(path: str, key: str, text: str, is_text: bool) -> str:
    """The words for what makes a value a secret, without repeating it; empty where it is none."""
    if is_text and (form := form_of(text)):
        return f"looks like {form}"
    if is_text and (variable := holder_of(text)):
        return f"holds the value of ${variable}, which looks like a secret"
    lower = key.lower()
    named = SECRET_KEY.search(lower) or (path.startswith(VARIABLE) and names_secret(key))
    # One to log in with, but not one of a vocabulary, such as ``eos_token: </s>``.
    is_token = lower.endswith("token") and not text.startswith(("<", "[", "$", "???"))
    logs_in = len(text) >= 8 if lower == "token" else LOGIN_KEY.search(lower) or MIXED_TEXT.fullmatch(text)
    return f"{key} looks like a secret" if (named and (is_text or len(text) > 3)) or (is_token and logs_in) else ""
