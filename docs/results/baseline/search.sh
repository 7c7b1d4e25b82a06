#!/usr/bin/env bash
# The searches of docs/results/baseline: bash docs/results/baseline/search.sh DATA_FOLDER [TRIALS]
# DATA_FOLDER contains the files that docs/additional_tasks.md lists. Repeat the command to resume.
set -euo pipefail
here=$(dirname "$0")
for task in sms_spam_collection crowdflower_corporate_messaging crowdflower_progressive_stance crowdflower_progressive_opinion; do
  python scripts/search_baseline.py --task_name="$task" --data_dir="$1" --space="$here/space.toml" --trials="${2:-60}" \
    --max_seq_length=32 --train_batch_size=32 --eval_batch_size=256 --predict_batch_size=256 --eval_every_steps=50 \
    --early_stopping_patience=3 --workers=1 --final_seeds=1,2,3 --output_dir="runs/search/$task"
done
python scripts/run_sweep.py --sweep="$here/adapters.toml" --data_dir="$1" --output_dir=runs/baseline_adapters --workers=1
python scripts/report_baseline.py --output=runs/baseline_report \
  --search="$(ls -d runs/search/* | paste -sd,)" --results=docs/results/study.csv,runs/baseline_adapters/results.csv
