"""Callbacks of a training, one a file; those below can be named in a configuration.

user       the user's callbacks, built and served what they name; ``order`` adds ours behind them
step_record  the lines of ``metrics.jsonl``; progress: the bar; samples: completions on the way
stop       a signal becomes a save at the end of a step; slower: the lower rate of a rollback
"""

from runner.training.callback.anomaly import Anomaly
from runner.training.callback.samples import Samples

__all__ = ["Anomaly", "Samples"]
