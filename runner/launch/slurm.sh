#!/bin/bash
# Written by `python -m runner`, which submits it: each task of the array trains the run of its number.
{% set whole = runs | length > 1 and runs | last - runs | first == runs | length - 1 %}
{% set numbers = "%d-%d" | format(runs | first, runs | last) if whole else runs | join(",") %}
#SBATCH --job-name={{ name }} --array={{ numbers }}{{ "%%%d" % launcher.jobs if launcher.jobs }}
#SBATCH --output={{ place.replace("%", "%%") | quote }}/%A_%a.log --open-mode=append
#SBATCH --nodes={{ launcher.num_machines }} --ntasks-per-node=1
{% set gpus = launcher.gpus_per_node if launcher.gpus_per_node is not none else 0 if on_cpu else launcher.num_processes %}
{% if gpus %}
#SBATCH --gpus-per-node={{ gpus | quote }}
{% endif %}
{% for word in ["partition", "account", "qos", "time", "cpus_per_task", "mem", "constraint", "nodelist"] if launcher[word] %}
#SBATCH --{{ word.replace("_", "-") }}={{ launcher[word] | quote }}
{% endfor %}
#SBATCH --requeue --kill-on-invalid-dep=yes --signal=USR2@{{ launcher.signal_seconds }}
{% for word, value in launcher.parameters.items() if value is not false %}
#SBATCH --{{ word.replace("_", "-") | quote }}{{ "" if value is true else "=" ~ value | quote }}
{% endfor %}

runs=(
{% for number, folder in runs.items() %}
  [{{ number }}]={{ folder | quote }}
{% endfor %}
)
{% for line in launcher.setup %}
{{ line }}
{% endfor %}

# Before the time limit, and where a preemption has a grace, Slurm sends its signal to the step alone: the run is saved,
# leaves with 143 (140 where Python had hardly begun), and goes on in the next job. A signal to this shell says that
# Slurm ends the job: by scancel, or to put it back into the queue itself.
trap ended=1 TERM
srun --ntasks={{ launcher.num_machines }}{{ " --cpus-per-task=%d" % launcher.cpus_per_task if launcher.cpus_per_task }} {{ (launcher.python or executable) | quote }} \
  -m runner.launch "${runs[$SLURM_ARRAY_TASK_ID]}" --trust
code=$?
if [[ $code =~ ^(140|143)$ && -z $ended && ${SLURM_RESTART_COUNT:-0} -lt {{ launcher.max_requeues }} ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
