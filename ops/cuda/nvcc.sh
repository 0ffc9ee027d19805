#!/bin/sh
# nvcc.sh LOG COMMAND...    runs nvcc; what it says is in LOG too
log=$1
shift
"$@" >"$log" 2>&1
status=$?
cat "$log"
exit $status
