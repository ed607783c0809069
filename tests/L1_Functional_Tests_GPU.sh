#!/usr/bin/env bash
# The functional tests that need a GPU: every tests/functional/*_gpu.sh. Prints a table of results and seconds
# and fails if one failed. Names of tests as arguments run only those.
set -uo pipefail
cd "$(dirname "$0")/.."
source tests/functional/suite.env
run_suite GPU "$@"
