#!/usr/bin/env bash
# Makes the reports in benchmarks/serving/reports anew, by the commands that a reader has. Half an hour on two cores,
# which nothing else should use from the first profile on, and before it as long for models that are not there yet.
#
#   benchmarks/serving/examples.sh ENCODER DATA [MODELS]
#
#   ENCODER   folder of an encoder, as the README has it
#   DATA      folder with imdb_long/, sst1/, quora/ and sts_cs224n/, each with train.tsv and dev.tsv
#   MODELS    where checkpoints and entries are kept, so that a second run only measures
set -euo pipefail
project=$(realpath "$(dirname "$0")/../..")
encoder=$(realpath "${1:?folder of an encoder}") data=$(realpath "${2:?folder of the data sets}")
models=${3:-$(mktemp -d)}
reports=$project/benchmarks/serving/reports
mkdir -p "$models/checkpoints" "$models/model_repository"
# Reports have the paths that commands were given: none of this machine.
ln -sfn "$data" "$models/data"
ln -sfn "$project/demo" "$models/demo"
cd "$models"

# finetune NAME OPTIONS, export NAME CHECKPOINT OPTIONS: unless they are there.
finetune() { [ -e "checkpoints/$1" ] || sparse-serve finetune "$encoder" --output "checkpoints/$1" "${@:2}"; }
export_entry() { [ -e "model_repository/$1" ] || sparse-serve export "checkpoints/$2" --name "$1" "${@:3}"; }
# profile REPORT NAME... OPTIONS
profile() {
  sparse-serve profile "${@:2}" --output-dir "$1"
  mkdir -p "$reports/$1"
  cp "$1"/report.{json,csv} "$reports/$1"
}

reviews=(--train demo/reviews_train.tsv --eval demo/reviews_eval.tsv --learning-rate 5e-5)
finetune reviews "${reviews[@]}" --attention sparsegen --lambda -4 --epochs 5
finetune reviews_aaa "${reviews[@]}" --attention axis --rho-target 0.6 --epochs 6

# What adapters and heads cost does not hang on what they have learned.
few=(--attention sparsegen --max-train-rows 64 --max-eval-rows 64 --max-steps 4 --max-length 128)
cat >tasks.yaml <<YAML
tasks:
  sentiment: {task: classification, train: data/sst1/train.tsv, eval: data/sst1/dev.tsv}
  paraphrase: {task: classification, train: data/quora/train.tsv, eval: data/quora/dev.tsv}
  similarity: {task: regression, train: data/sts_cs224n/train.tsv, eval: data/sts_cs224n/dev.tsv}
YAML
finetune several --tasks tasks.yaml "${few[@]}"
finetune sentiment --train data/sst1/train.tsv --eval data/sst1/dev.tsv "${few[@]}"
finetune paraphrase --train data/quora/train.tsv --eval data/quora/dev.tsv "${few[@]}"
finetune similarity --task regression --train data/sts_cs224n/train.tsv --eval data/sts_cs224n/dev.tsv "${few[@]}"

export_entry reviews reviews --eval demo/reviews_eval.tsv --with-baselines
export_entry reviews_aaa reviews_aaa --eval demo/reviews_eval.tsv --with-baselines
export_entry reviews_int8 reviews --dtype int8 --with-baselines
for name in several sentiment paraphrase similarity; do
  export_entry "$name" "$name"
done

# The demo's model on its own texts.
profile reviews reviews -b 4 --lengths 64,128,256,512
# SSAF, AAA and dense on long documents, as they are.
profile imdb_long reviews reviews_aaa -b 4 --input-data data/imdb_long/dev.tsv \
  --variants model,control,packed_dense,padded_fused,padded_eager
# int8 beside fp32.
profile int8 reviews reviews_int8 -b 4 --lengths 64,512 --eval demo/reviews_eval.tsv \
  --variants model,control,packed_dense,padded_fused
# One model of three tasks beside three models.
profile several_tasks several sentiment paraphrase similarity --lengths 64,128 --variants model,control
