#!/bin/bash
# test.sh: from nothing to the end: build the frozen program, install it under Wine, use it, upgrade and remove it.
#   test.sh            everything
#   test.sh --quick    what .ci/run does: zlib, one user instead of two, no photographs of the set-up's pages
#   test.sh --built    with the frozen folder that is there
# More arguments go to pytest. PYTHON names one with the project's test requirements; see env.sh for the rest.
# APPLIANCE_TEST_REPORT and APPLIANCE_TEST_PHOTOS name folders that take the pictures.
set -euo pipefail
. "$(dirname "$0")/env.sh"
quick='' built=''
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1 ;;
    --built) built=1 ;;
    *) break ;;
  esac
  shift
done
[ -n "$built" ] || "$here/build.sh" --folder
# The same set-up as a user gets, or a quicker one.
QUICK=$quick "$here/installer.sh" "$FOLDER" "$WIN_BASE/out"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$REPO/pyproject.toml")
export APPLIANCE_TEST_SETUP=$WIN_BASE/out/inference-appliance-$version-$VARIANT-setup.exe APPLIANCE_TEST_PROGRAM=$FOLDER
step "tests"
cd "$REPO"
if [ -n "$quick" ]; then
  "${PYTHON:-python3}" -m pytest -s tests/packaging/test_windows.py -k "not Anna" "$@"
  "${PYTHON:-python3}" -m pytest tests/packaging/test_setup.py \
    -k "nothing or replaces or start or moved or another or downgrade or signed or same" "$@"
else
  "${PYTHON:-python3}" -m pytest -s --durations=15 tests/packaging/test_windows.py tests/packaging/test_setup.py \
    tests/packaging/test_pages.py "$@"
fi
step "done"
