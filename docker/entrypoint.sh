#!/bin/sh
# Starts Triton with everything closed that answering requests does not need. Arguments are added to its own.
# Nothing is started on an op library that is not the image's own, or not of the version the entries need, nor
# on entries that are not as they were exported.
#
#   MODEL_REPOSITORY                    where the models are (default /models)
#   VERIFY                              0: neither digests, links nor rights of the entries' files are checked
#   MANIFEST_DIGESTS                    NAME=SHA256, with blanks between several: the manifests that entries must have
#   ADMIN_KEY_FILE                      file with a key that opens the restricted APIs to who sends it in the
#                                       header "admin-key"; without it nobody can. Triton takes the key in its
#                                       command line: who can list this machine's processes can read it
#   DRAIN_TIMEOUT                       seconds that a stop waits for requests in flight, and for clients to close
#                                       their HTTP connections (default 8: docker stop kills after 10)
#   GRPC_SERVER_CERT, GRPC_SERVER_KEY   PEM files: gRPC over TLS
#   GRPC_ROOT_CERT                      PEM file: only clients with a certificate of this authority
#
# Triton's HTTP has no TLS: put a gateway before it.
set -eu

home=$(dirname "$0")
require_built() { # FOLDER
  if ! (cd "$1" && sha256sum --check --status libsparse_ops.so.sha256) 2>/dev/null; then
    echo "error: $1/libsparse_ops.so is not the op library this image was built with: build it again" >&2
    exit 1
  fi
}

require_built "$home/lib"
device=$(python3 -I -S "$home/check_entries.py")
if [ "$device" = cuda ]; then
  # One library is loaded, and this one has the kernels of the other too.
  require_built "$home/lib/cuda"
  export LD_LIBRARY_PATH="$home/lib/cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

if [ -n "${ADMIN_KEY:-}" ]; then
  echo "error: ADMIN_KEY is shown by docker inspect: put the key into a file, and its path into ADMIN_KEY_FILE" >&2
  exit 2
fi
if [ -n "${ADMIN_KEY_FILE:-}" ]; then
  key=$(cat "$ADMIN_KEY_FILE" 2>/dev/null) || key=
  case $key in
    "" | *[!A-Za-z0-9._~+/=-]*)
      echo "error: ADMIN_KEY_FILE $ADMIN_KEY_FILE has no key: give a readable file with one line of letters, digits and ._~+/=-" >&2
      exit 2
      ;;
  esac
  header=admin-key
else
  # No header has a colon in its name: nobody can send this one, whoever reads it in the command line.
  header=no:header
  key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
fi
restricted="shared-memory,model-config,model-repository,statistics,trace,logging:$header=$key"

case ${GRPC_SERVER_CERT:+certificate}-${GRPC_SERVER_KEY:+key}-${GRPC_ROOT_CERT:+root} in
  certificate-key-*)
    set -- --grpc-use-ssl=true "--grpc-server-cert=$GRPC_SERVER_CERT" "--grpc-server-key=$GRPC_SERVER_KEY" "$@"
    ;;
  --) ;;
  *)
    echo "error: TLS for gRPC needs GRPC_SERVER_CERT and GRPC_SERVER_KEY, both; GRPC_ROOT_CERT is beside them" >&2
    exit 2
    ;;
esac
if [ -n "${GRPC_ROOT_CERT:-}" ]; then
  set -- --grpc-use-ssl-mutual=true "--grpc-root-cert=$GRPC_ROOT_CERT" "$@"
fi

# Triton refuses flags it was built without. One model loads after another: where two do at the same moment that
# have the same ops, ONNX Runtime may fail one of them.
flags=$(tritonserver --help 2>&1 || true)
for flag in --allow-sagemaker=false --allow-vertex-ai=false --model-load-thread-count=1; do
  case $flags in
    *"${flag%=*} "*) set -- "$flag" "$@" ;;
  esac
done

exec tritonserver \
  "--model-repository=${MODEL_REPOSITORY:-/models}" \
  --model-control-mode=none \
  --disable-auto-complete-config \
  --exit-on-error=true \
  --strict-readiness=true \
  "--exit-timeout-secs=${DRAIN_TIMEOUT:-8}" \
  "--http-restricted-api=$restricted" \
  "--grpc-restricted-protocol=$restricted" \
  "$@"
