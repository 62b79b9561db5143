#!/bin/bash
# Debian 12, as root -> a Debian 12 root of ARCH, one more with Python 3.11, and the locked wheels, below LINUX_BASE.
# What is there already is not made again.
set -euo pipefail
. "$(dirname "$0")/env.sh"
mkdir -p "$CACHE"

step "Debian packages"
wanted=(mmdebstrap python3 python3-venv binutils)
[ -z "$QEMU" ] || wanted+=(qemu-user-static binfmt-support arch-test)
missing=()
for package in "${wanted[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ -n "$QEMU" ]; then
  # without systemd nobody mounts this, and without it the kernel does not know of qemu
  [ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  [ -e "/proc/sys/fs/binfmt_misc/$QEMU" ] || update-binfmts --enable "$QEMU"
  arch-test "$ARCH"
fi

if [ ! -f "$BASE/.done" ]; then
  step "Debian 12 root of $ARCH (half a minute; more than one under qemu)"
  rm -rf --one-file-system "$BASE"
  mmdebstrap --quiet --arch="$ARCH" --variant=apt --aptopt='Apt::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include=adduser,init-system-helpers bookworm "$BASE" </dev/null
  touch "$BASE/.done"
fi

if [ ! -f "$ROOM/.done" ]; then
  step "Python 3.11 in a copy of it"
  rm -rf --one-file-system "$ROOM"
  cp -a "$BASE" "$ROOM"
  rm "$ROOM/.done"
  inside "$ROOM" apt-get update -qq
  inside "$ROOM" apt-get install -y -qq python3.11 libpython3.11 binutils >"$LINUX_BASE/apt-$ARCH.log" 2>&1 ||
    { cat "$LINUX_BASE/apt-$ARCH.log"; exit 1; }
  touch "$ROOM/.done"
fi

[ -x "$TOOLS/bin/pip" ] || /usr/bin/python3 -m venv "$TOOLS"
lock=$REPO/build/locks/linux-$VARIANT.txt wheels=$ROOM/opt/wheels-$VARIANT
stamp=$wheels/.lock-$(sha256sum "$lock" | cut -c1-16)
if [ ! -f "$stamp" ]; then
  step "wheels of $(basename "$lock")"
  rm -rf "$wheels"
  platforms=()
  for glibc in 17 24 26 27 28 31 34; do platforms+=(--platform "manylinux_2_${glibc}_$MACHINE"); done
  # the lock holds all of it, without markers, so that pip of this machine need not resolve anything for the other one
  "$TOOLS/bin/pip" install -qq --no-deps --only-binary :all: --require-hashes "${platforms[@]}" \
    --platform "manylinux2014_$MACHINE" --python-version 3.11 --implementation cp --cache-dir "$CACHE/pip" --no-compile \
    --no-warn-script-location --target "$wheels" -r "$lock"
  touch "$stamp"
fi

step "does it run?"
inside "$ROOM" "PYTHONPATH=/opt/wheels-$VARIANT" python3.11 -c "import ssl, sqlite3, ctypes, numpy, onnxruntime as o, PIL, platform
print('Python', platform.python_version(), platform.machine(), '- numpy', numpy.__version__, '- ONNX Runtime', o.__version__, *o.get_available_providers())"
