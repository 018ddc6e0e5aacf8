python unsloth-cli.py --model_name unsloth/mistral-7b-v0.3-bnb-4bit --max_seq_length 8192 --load_in_4bit \
    --dataset yahma/alpaca-cleaned --r 64 --lora_alpha 32 --use_rslora --per_device_train_batch_size 4 \
    --learning_rate 2e-5 --max_steps 100 --random_state 1 --seed 1 --report_to wandb --save_model --save_path out \
    --push_model --hub_path me/mine --hub_token hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ12345678
