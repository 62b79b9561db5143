#!/bin/bash
# Debian 12, amd64, as root -> Wine, a real Windows Python 3.11 and the locked Windows wheels, below WIN_BASE.
# What is there already is not made again.
set -euo pipefail
. "$(dirname "$0")/env.sh"
mkdir -p "$CACHE"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive

step "Debian packages"
missing=()
for package in nsis xvfb xauth x11-utils xdotool imagemagick gcc-mingw-w64-x86-64-win32 mmdebstrap osslsigncode curl unzip \
  python3 python3-venv; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ ! -f "$WINE_ROOT/.done" ]; then
  step "Debian 13 root with Wine 10 (about a minute)"
  rm -rf --one-file-system "$WINE_ROOT"
  mmdebstrap --quiet --variant=apt --aptopt='Apt::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include=wine64,wine trixie "$WINE_ROOT" </dev/null
  # the debug sections of Wine's files are 480 MB here, and again in each prefix
  find "$WINE_ROOT/usr/lib/x86_64-linux-gnu/wine/x86_64-windows" -type f -print0 |
    xargs -0 -n 100 x86_64-w64-mingw32-strip --strip-debug
  touch "$WINE_ROOT/.done"
fi

if [ ! -x "$TOOLS/bin/pip" ]; then
  step "tools of this machine"
  /usr/bin/python3 -m venv "$TOOLS"
fi

# wheels LOCK FOLDER: what the lock names, for Windows; the lock holds all of it, so pip need not resolve anything
wheels() {
  "$TOOLS/bin/pip" install -qq --no-deps --only-binary :all: --require-hashes --platform win_amd64 --python-version 3.11 \
    --implementation cp --cache-dir "$CACHE/pip" --no-compile --no-warn-script-location --target "$2" -r "$1"
}

"$here/python.sh"

lock=$REPO/build/locks/windows-$VARIANT.txt
stamp=$WINPY/.wheels-$(sha256sum "$lock" | cut -c1-16)
if [ ! -f "$stamp" ]; then
  step "Windows wheels of $(basename "$lock")"
  rm -rf "$WINPY/Lib/site-packages" "$WINPY"/.wheels-*
  wheels "$lock" "$WINPY/Lib/site-packages"
  touch "$stamp"
fi

if [ ! -f "$TEMPLATE/.done" ]; then
  step "Wine prefix"
  rm -rf "$TEMPLATE"
  export WINEPREFIX=$TEMPLATE
  DISPLAY='' w wineboot -i || true
  "$here/winrun" wineserver -w
  # Wine's own C runtime lacks some complex functions that numpy wants. Microsoft's goes here only, never into the program.
  cp "$CACHE/runtime/ucrtbase.dll" "$TEMPLATE/drive_c/windows/system32/ucrtbase.dll"
  w reg add 'HKCU\Software\Wine\DllOverrides' /v ucrtbase /d native,builtin /f >/dev/null
  "$here/winrun" wineserver -w
  touch "$TEMPLATE/.done"
  export WINEPREFIX=$WIN_BASE/prefix
fi
[ -f "$WINEPREFIX/.done" ] || "$here/prefix.sh" "$WINEPREFIX"

step "does it run?"
w "$(win "$WINPY")/python.exe" -c "import sys, ssl, sqlite3, ctypes, asyncio, numpy, onnxruntime as o, PIL, pystray
print('Python', sys.version.split()[0], '- numpy', numpy.__version__, '- ONNX Runtime', o.__version__, *o.get_available_providers())"
