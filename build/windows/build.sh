#!/bin/bash
# Builds the Windows program on Debian 12 (amd64, as root), from nothing: Wine and a Windows Python are set up the
# first time. Layout of the work folder: see env.sh.
#
#   build/windows/build.sh                    the frozen folder of the CPU variant, checked, and its installer
#   VARIANT=cuda build/windows/build.sh       the same with ONNX Runtime for CUDA
#   WIN_BASE=/somewhere build/windows/build.sh
#   build/windows/build.sh --quick            the installer with zlib instead of LZMA (faster, larger)
#   build/windows/build.sh --folder           no installer
#   build/windows/build.sh --twice            freeze twice and tell what differs
set -euo pipefail
. "$(dirname "$0")/env.sh"
export PYTHONHASHSEED=0 # the order of sets in what is frozen
quick='' only_folder='' twice=''
for option in "$@"; do
  case $option in
    --quick) quick=1 ;;
    --folder) only_folder=1 ;;
    --twice) twice=1 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

# frozen FOLDER: appliance.spec, into FOLDER/appliance
frozen() {
  rm -rf "$1" "$PYI_WORK"
  # Microsoft's interfaces that Wine does not spell out are part of Windows 10
  DISPLAY='' w "$(win "$WINPY")/python.exe" -m PyInstaller --noconfirm --log-level WARN --distpath "$(win "$1")" \
    --workpath "$(win "$PYI_WORK")" "$(win "$REPO")/appliance.spec" |
    { grep -avE "could not resolve '(api|ext)-ms-win-| INFO: |Excluding Wine built-in DLL|DXGI factory" || true; }
}

"$here/setup.sh"

step "PyInstaller (about a minute)"
frozen "$DIST.new"
step "checks"
w "$(win "$WINPY")/python.exe" -X utf8 "$(win "$here")/check_folder.py" "$(win "$DIST.new")/appliance" \
  --forbid "$WIN_BASE" --forbid "$REPO" --forbid "$HOME/"
if [ -n "$twice" ]; then
  step "PyInstaller once more"
  frozen "$DIST.again"
  diff -rq "$DIST.new" "$DIST.again" && echo "both times the same files" || echo "the two differ in the files above"
  rm -rf "$DIST.again"
fi
rm -rf "$DIST.old"
[ ! -e "$DIST" ] || mv "$DIST" "$DIST.old"
mv "$DIST.new" "$DIST"
rm -rf "$DIST.old"
"$here/winrun" wineserver -k || true

if [ -z "$only_folder" ] && [ -x "$here/installer.sh" ]; then
  step "installer"
  QUICK=$quick "$here/installer.sh"
fi
step "done: $FOLDER"
