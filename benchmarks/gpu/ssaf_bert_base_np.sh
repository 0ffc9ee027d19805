#!/usr/bin/env bash
# The SSAF paper's "Np": as ssaf_bert_base, with all weights random. Needs no weights of BERT-base.
#
#   TOKENIZER   folder of an encoder with bert-base-uncased's vocabulary (the demo's, unless given)
#   DATA        folder with sst1/ and sst2/, each with train.tsv and dev.tsv (see benchmarks/quality)
#   SETS        which of the two to train on (both, unless given)
set -euo pipefail
: "${DATA:?folder with sst1/ and sst2/}" "${TOKENIZER:=$("$PYTHON" demo/encoder_path.py)}"

encoder=$OUT/bert_base
"$PYTHON" benchmarks/gpu/bert_base.py "$encoder" --tokenizer "$TOKENIZER"

declare -A lambdas=([sst1]=-3 [sst2]=-4)
for set in ${SETS:-sst1 sst2}; do
    "$PYTHON" benchmarks/quality/seeds.py benchmarks/quality/ssaf_lambdas.py "$encoder" --data "$DATA/$set" \
        --name "bert_base_${set}_np" --results "$OUT" --lambdas "${lambdas[$set]}" --epochs 4 \
        --learning-rate 2e-5 --batch-size 16 --from-scratch
done
