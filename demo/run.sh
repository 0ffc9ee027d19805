#!/usr/bin/env bash
# The main job once, end to end: fine-tune, export, serve, classify over HTTP and gRPC, measure, stop.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${ENCODER:?set ENCODER to a pretrained BERT encoder: a folder or a hub id}"
HTTP_PORT=${HTTP_PORT:-8000} GRPC_PORT=${GRPC_PORT:-8001} METRICS_PORT=${METRICS_PORT:-8002}

server=
ready=$(mktemp)
# Whatever happens, the server ends with the demo; at the planned end it must end well.
abandon() {
  if [ -n "$server" ]; then kill -TERM "$server" 2>/dev/null && wait "$server"; fi
  rm -f "$ready"
}
stop() {
  kill -TERM "$server"
  wait "$server"
  server=
}
trap abandon EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. Fine-tune with sparse attention (λ = -4)"
sparse-serve finetune "$ENCODER" --train demo/reviews_train.tsv --eval demo/reviews_eval.tsv \
  --attention sparsegen --lambda -4 --epochs 5 --learning-rate 5e-5 --max-length 128 --seed 0 \
  --output checkpoints/reviews --force

say "2. Export through the parity gate, with the dense twins"
sparse-serve export checkpoints/reviews --name reviews --eval demo/reviews_eval.tsv --with-baselines --force

say "3. Serve"
sparse-serve serve model_repository \
  --http-port "$HTTP_PORT" --grpc-port "$GRPC_PORT" --metrics-port "$METRICS_PORT" >"$ready" &
server=$!
until [ -s "$ready" ]; do
  kill -0 "$server" 2>/dev/null || { wait "$server"; exit 1; }
  sleep 0.2
done
cat "$ready"

say "4. Classify over HTTP and over gRPC"
sparse-serve classify reviews -i http -u "127.0.0.1:$HTTP_PORT" \
  "A warm, funny and beautifully acted little film." "Two hours I will never get back."
sparse-serve classify reviews -i grpc -u "127.0.0.1:$GRPC_PORT" \
  "Not without charm, but it never comes together."
if command -v curl >/dev/null; then
  curl --silent --show-error --fail "http://127.0.0.1:$HTTP_PORT/v2/models/reviews/generate" \
    --data '{"TEXT": "I laughed, I cried, I would see it again."}'
  echo
fi
stop

say "5. Measure memory and latency while serving, against dense attention"
sparse-serve profile reviews -b 4 --lengths 128,512 --rounds 2 --measurement-interval 1000 --output-dir report \
  --variants model,control,packed_dense,padded_fused,padded_eager

say "Done: open report/report.html"
