#!/bin/bash
# Builds the Debian package on Debian 12 (as root), from nothing: a Debian root of the architecture is made the first
# time, in which PyInstaller runs; that of another machine's architecture runs under qemu. Layout of the work folder: see
# env.sh.
#
#   build/linux/build.sh                         the package of the CPU variant for this machine's architecture
#   build/linux/build.sh --arch arm64            for that architecture
#   VARIANT=cuda build/linux/build.sh            with ONNX Runtime for CUDA
#   build/linux/build.sh --package               only the package, from the frozen folder that is there
#   build/linux/build.sh --twice                 freeze twice and tell what differs
set -euo pipefail
only_package='' twice=''
while [ $# -gt 0 ]; do
  case $1 in
    --arch) export ARCH=${2:?amd64 or arm64}; shift ;;
    --package) only_package=1 ;;
    --twice) twice=1 ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
. "$(dirname "$0")/env.sh"

# frozen NAME: appliance.spec, into DIST/NAME/appliance
frozen() {
  rm -rf "${DIST:?}/$1" "$ROOM/tmp/pyinstaller"
  inside "$ROOM" "PYTHONPATH=/opt/wheels-$VARIANT" python3.11 -m PyInstaller --noconfirm --log-level WARN \
    --distpath "/dist/$1" --workpath /tmp/pyinstaller /src/appliance.spec 2>&1 |
    # what is told of: Windows' and X's libraries, which pystray asks for, and CUDA's, which are not shipped
    { grep -avE " INFO: |Library (shell32|ole32|user32|libX11)|could not resolve 'lib(cu|nv)|Failed to collect submodules for 'pystray'|WARNING: (Ignoring /usr/lib|Hidden import \"(gi|tzdata))" || true; }
}

if [ -z "$only_package" ]; then
  "$here/setup.sh"
  step "PyInstaller (a minute; ten under qemu)"
  frozen new
  step "checks"
  inside "$ROOM" "PYTHONPATH=/opt/wheels-$VARIANT" python3.11 -X utf8 /src/build/linux/check_elf.py /dist/new/appliance \
    --machine "$MACHINE" --forbid "$REPO" --forbid /opt/wheels
  inside "$ROOM" python3.11 /src/build/linux/licenses.py "/opt/wheels-$VARIANT" \
    /dist/new/appliance/_internal/third-party-licenses.txt
  if [ -n "$twice" ]; then
    step "PyInstaller once more"
    frozen again
    diff -rq --exclude=third-party-licenses.txt "$DIST/new" "$DIST/again" && echo "both times the same files" || echo "the two differ in the files above"
    rm -rf "$DIST/again"
  fi
  rm -rf "$FOLDER"
  mv "$DIST/new/appliance" "$FOLDER"
  rmdir "$DIST/new"
fi
step "package"
"$here/package.sh"
step "done"
