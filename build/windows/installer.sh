#!/bin/bash
# installer.sh [FOLDER [OUT]]: make the set-up of a frozen folder; says where it is. The folder stays as it is.
#   FOLDER   the frozen program, default $FOLDER of env.sh    OUT    a folder, default $WIN_BASE/out
#   QUICK=1  zlib instead of LZMA: faster, larger             VERSION   default: the project's
#   SIGN_PFX, SIGN_PASSFILE, SIGN_URL: see sign.sh
set -euo pipefail
. "$(dirname "$0")/env.sh"
folder=${1:-$FOLDER} out=${2:-$WIN_BASE/out}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' "$REPO/pyproject.toml")}
[ -f "$folder/appliance.exe" ] && [ -f "$folder/appliance-cli.exe" ] || { echo "installer.sh: no program in $folder" >&2; exit 2; }
mkdir -p "$out"
cuda=
[ "$VARIANT" != cuda ] || cuda=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -n "${SIGN_PFX:-}" ]; then
  # Of a copy, so that building again begins with the same files.
  cp -a "$folder" "$work/program"
  folder=$work/program
  step "signing"
  "$here/sign.sh" "$folder/appliance.exe" "$folder/appliance-cli.exe"
  find "$folder" -name '*.dll' -o -name '*.pyd' | sort | xargs "$here/sign.sh"
fi

step "list of files"
python3 "$here/filelist.py" "$folder" "$work/list" "$version" --also "$REPO/LICENSE=LICENSE.txt"

# The pages' pictures, from the icon.
icon=$REPO/assets/icons/appliance
convert -size 164x314 gradient:'#f3f6fa-#c9d8ea' \( "$icon.png" -resize 112x112 \) -gravity center -geometry +0-40 \
  -composite -alpha off -type TrueColor BMP3:"$work/side.bmp"
convert -size 150x57 xc:white \( "$icon.png" -resize 44x44 \) -gravity east -geometry +8+0 -composite -alpha off \
  -type TrueColor BMP3:"$work/header.bmp"
# Windows' own line ends, and a mark that says that it is UTF-8.
printf '\xef\xbb\xbf' >"$work/license.txt"
sed 's/$/\r/' "$REPO/LICENSE" >>"$work/license.txt"

setup=$out/inference-appliance-$version-$VARIANT-setup.exe
step "makensis${QUICK:+ (quick)}"
makensis -V2 -WX -INPUTCHARSET UTF8 ${QUICK:+-DQUICK} ${SIGN_PFX:+-DSIGN="\"$here/sign.sh\""} -DVERSION="$version" \
  ${cuda:+-DCUDA} -DFILES="$work/list" -DOUT="$setup" -DICON="$icon.ico" -DSIDE="$work/side.bmp" -DHEADER="$work/header.bmp" \
  -DLICENSE="$work/license.txt" "$REPO/installer/windows/setup.nsi"
step "done"
ls -l "$setup" | awk '{printf "%s  %.1f MB\n", $NF, $5 / 1e6}'
