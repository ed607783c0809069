#!/usr/bin/env bash
# The functional tests that need no GPU: every tests/functional/*.sh whose name does not end in _gpu.sh. Prints a table of results and seconds
# and fails if one failed. Names of tests as arguments run only those.
set -uo pipefail
cd "$(dirname "$0")/.."
source tests/functional/suite.env
run_suite CPU "$@"
