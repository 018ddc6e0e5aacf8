# sbatch --parsable outputs/toy-rlhf-sft/.queue/toy-rlhf-sft.<digest>.sh
#!/bin/bash
# Written by `python -m runner`, which submits it: each task of the array trains the run of its number.
#SBATCH --job-name=toy-rlhf-sft.<digest> --array=0-1%2
#SBATCH --output=outputs/toy-rlhf-sft/.queue/%A_%a.log --open-mode=append
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --time=1-12
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --requeue --kill-on-invalid-dep=yes --signal=USR2@120
#SBATCH --exclusive
#SBATCH --comment='a b'

runs=(
  [0]=outputs/toy-rlhf-sft/seed-0-1b7aefd0c2
  [1]=outputs/toy-rlhf-sft/seed-1-6510d6d5eb
)
module load cuda
source venv/bin/activate

# Before the time limit, and where a preemption has a grace, Slurm sends its signal to the step alone: the run is saved,
# leaves with 143 (140 where Python had hardly begun), and goes on in the next job. A signal to this shell says that
# Slurm ends the job: by scancel, or to put it back into the queue itself.
trap ended=1 TERM
srun --ntasks=1 --cpus-per-task=32 python \
  -m runner.launch "${runs[$SLURM_ARRAY_TASK_ID]}" --trust
code=$?
if [[ $code =~ ^(140|143)$ && -z $ended && ${SLURM_RESTART_COUNT:-0} -lt 100 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code

# sbatch --parsable '--dependency=aftercorr:<job 1>' outputs/toy-rlhf-reward_model/.queue/toy-rlhf-reward_model.<digest>.sh
#!/bin/bash
# Written by `python -m runner`, which submits it: each task of the array trains the run of its number.
#SBATCH --job-name=toy-rlhf-reward_model.<digest> --array=0-1%2
#SBATCH --output=outputs/toy-rlhf-reward_model/.queue/%A_%a.log --open-mode=append
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --time=1-12
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --requeue --kill-on-invalid-dep=yes --signal=USR2@120
#SBATCH --exclusive
#SBATCH --comment='a b'

runs=(
  [0]=outputs/toy-rlhf-reward_model/default-9182cec5e0
  [1]=outputs/toy-rlhf-reward_model/default-092d418858
)
module load cuda
source venv/bin/activate

# Before the time limit, and where a preemption has a grace, Slurm sends its signal to the step alone: the run is saved,
# leaves with 143 (140 where Python had hardly begun), and goes on in the next job. A signal to this shell says that
# Slurm ends the job: by scancel, or to put it back into the queue itself.
trap ended=1 TERM
srun --ntasks=1 --cpus-per-task=32 python \
  -m runner.launch "${runs[$SLURM_ARRAY_TASK_ID]}" --trust
code=$?
if [[ $code =~ ^(140|143)$ && -z $ended && ${SLURM_RESTART_COUNT:-0} -lt 100 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code

# sbatch --parsable '--dependency=afterok:<job 2>_0' outputs/toy-rlhf-ppo/.queue/toy-rlhf-ppo.<digest>.sh
#!/bin/bash
# Written by `python -m runner`, which submits it: each task of the array trains the run of its number.
#SBATCH --job-name=toy-rlhf-ppo.<digest> --array=0-1%2
#SBATCH --output=outputs/toy-rlhf-ppo/.queue/%A_%a.log --open-mode=append
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --time=1-12
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --requeue --kill-on-invalid-dep=yes --signal=USR2@120
#SBATCH --exclusive
#SBATCH --comment='a b'

runs=(
  [0]=outputs/toy-rlhf-ppo/seed-0-8fd83a7cc7
  [1]=outputs/toy-rlhf-ppo/seed-1-a1bb82b9ae
)
module load cuda
source venv/bin/activate

# Before the time limit, and where a preemption has a grace, Slurm sends its signal to the step alone: the run is saved,
# leaves with 143 (140 where Python had hardly begun), and goes on in the next job. A signal to this shell says that
# Slurm ends the job: by scancel, or to put it back into the queue itself.
trap ended=1 TERM
srun --ntasks=1 --cpus-per-task=32 python \
  -m runner.launch "${runs[$SLURM_ARRAY_TASK_ID]}" --trust
code=$?
if [[ $code =~ ^(140|143)$ && -z $ended && ${SLURM_RESTART_COUNT:-0} -lt 100 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code

# sbatch --parsable '--dependency=afterok:<job 2>_1' outputs/toy-rlhf-ppo/.queue/toy-rlhf-ppo.<digest>.sh
#!/bin/bash
# Written by `python -m runner`, which submits it: each task of the array trains the run of its number.
#SBATCH --job-name=toy-rlhf-ppo.<digest> --array=0-1%2
#SBATCH --output=outputs/toy-rlhf-ppo/.queue/%A_%a.log --open-mode=append
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --partition=gpu
#SBATCH --time=1-12
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --requeue --kill-on-invalid-dep=yes --signal=USR2@120
#SBATCH --exclusive
#SBATCH --comment='a b'

runs=(
  [0]=outputs/toy-rlhf-ppo/seed-0-69b9fb5ac3
  [1]=outputs/toy-rlhf-ppo/seed-1-6858284c7a
)
module load cuda
source venv/bin/activate

# Before the time limit, and where a preemption has a grace, Slurm sends its signal to the step alone: the run is saved,
# leaves with 143 (140 where Python had hardly begun), and goes on in the next job. A signal to this shell says that
# Slurm ends the job: by scancel, or to put it back into the queue itself.
trap ended=1 TERM
srun --ntasks=1 --cpus-per-task=32 python \
  -m runner.launch "${runs[$SLURM_ARRAY_TASK_ID]}" --trust
code=$?
if [[ $code =~ ^(140|143)$ && -z $ended && ${SLURM_RESTART_COUNT:-0} -lt 100 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
