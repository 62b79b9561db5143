#!/bin/bash
# prefix.sh FOLDER: make a fresh Wine prefix there, from the template (a second or two). FOLDER must not exist.
set -euo pipefail
. "$(dirname "$0")/env.sh"
[ -f "$TEMPLATE/.done" ] || { echo "prefix.sh: there is no template; build/windows/setup.sh makes it" >&2; exit 2; }
[ ! -e "$1" ] || { echo "prefix.sh: $1 is there already" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
cp -a --reflink=auto "$TEMPLATE" "$1"
