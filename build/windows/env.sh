# Settings that the scripts here share; source me.
#
# WIN_BASE   work folder, default work/windows in the checkout. In it:
#   wine/          a Debian 13 root that holds Wine 10
#   tools/         a Python environment of this machine: pip, and what makes the packs
#   cache/         downloaded packages, kept between builds
#   python-cpu/    Windows Python with the wheels of the variant (also python-cuda/)
#   template/      a clean Wine prefix; tests copy it (prefix.sh)
#   prefix/        the Wine prefix that builds use
#   pyinstaller-cpu/   PyInstaller's own work folder
#   dist-cpu/appliance/   the frozen folder (also dist-cuda/)
# VARIANT    cpu (onnxruntime) or cuda (onnxruntime-gpu)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export REPO=${here%/build/windows}
export WIN_BASE=${WIN_BASE:-$REPO/work/windows}
export VARIANT=${VARIANT:-cpu}
case $VARIANT in cpu | cuda) ;; *) echo "VARIANT is cpu or cuda, not $VARIANT" >&2; exit 2 ;; esac

export WINE_ROOT=$WIN_BASE/wine CACHE=$WIN_BASE/cache TOOLS=$WIN_BASE/tools
export TEMPLATE=$WIN_BASE/template WINEPREFIX=${WINEPREFIX:-$WIN_BASE/prefix}
export WINPY=$WIN_BASE/python-$VARIANT DIST=$WIN_BASE/dist-$VARIANT FOLDER=$WIN_BASE/dist-$VARIANT/appliance
export PYI_WORK=$WIN_BASE/pyinstaller-$VARIANT
export WINEDEBUG=${WINEDEBUG:--all}
# no question for Mono or Gecko, no .desktop files, and no debugger, which would hang on a crash
export WINEDLLOVERRIDES=${WINEDLLOVERRIDES:-mscoree=;mshtml=;winemenubuilder.exe=d;winedbg.exe=d}
# same inputs, same files: the time in archives and headers is that of the last commit
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$REPO" log -1 --format=%ct 2>/dev/null || echo 1704067200)}
export SOURCE_DATE_EPOCH

export BEGAN=${BEGAN:-$(date +%s)}
step() { printf '[%3d s] %s\n' $(($(date +%s) - BEGAN)) "$*"; }
# a Windows path of a file of this machine
win() { printf 'Z:%s' "$1"; }
# w PROGRAM ARGUMENT...: under Wine, with nothing to read, and its words through a pipe
w() {
  "$here/winrun" wine "$@" </dev/null 2>&1 | tr -d '\0\r'
  return "${PIPESTATUS[0]}"
}
