#!/usr/bin/env bash
# The functional tests, on GPUs (two, for those that are not colocated): prints a table of results and seconds, fails if one failed.
# Names of tests as arguments run only those.
set -uo pipefail
cd "$(dirname "$0")/.."
source tests/functional/suite.env
run_suite GPU "$@"
