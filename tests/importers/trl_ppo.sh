TASK="trl-lib/tldr"
accelerate launch --num_processes 4 my/copy/ppo_tldr.py --dataset_name $TASK \
    --dataset_test_split validation --eval_strategy steps --eval_steps 100 \
    --model_name_or_path EleutherAI/pythia-1b-deduped \
    --sft_model_path cleanrl/EleutherAI_pythia-1b-deduped__sft__tldr \
    --reward_model_path cleanrl/EleutherAI_pythia-1b-deduped__reward__tldr \
    --per_device_train_batch_size 16 --gradient_accumulation_steps 4 --total_episodes 1000000 \
    --missing_eos_penalty 1.0 --stop_token eos --kl_coef 0.03 "$@"
trl dpo --model_name_or_path a/b --dataset_name c/d
