trl grpo --config grpo_base.yaml --learning_rate 2e-6 --num-generations 4 \
    --reward_funcs accuracy_reward think_format_reward my_lab.rewards.tone
