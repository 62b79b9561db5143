#!/bin/bash
# The .deb of a frozen folder, with dpkg-deb:  package.sh [FOLDER [VERSION [OUT]]]
# Settings: env.sh. DEB_COMPRESSION: xz (default), none, …  No root is needed, and no machine of the architecture.
set -euo pipefail
. "$(dirname "$0")/env.sh"
FOLDER=${1:-$FOLDER} VERSION=${2:-$VERSION} OUT=${3:-$OUT}
from=$REPO/installer/linux
package=appliance relations='' suggests='' words='on the CPU'
if [ "$VARIANT" = cuda ]; then
  package=appliance-cuda suggests=', nvidia-modprobe' words='on NVIDIA GPUs'
  relations=$'Provides: appliance\nConflicts: appliance\nReplaces: appliance\n'
fi
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
umask 022
chmod 755 "$tree"

mkdir -p "$tree/usr/lib" "$tree/usr/bin" "$tree/DEBIAN"
cp -a --no-preserve=ownership,mode "$FOLDER" "$tree/usr/lib/appliance"
chmod 755 "$tree/usr/lib/appliance/appliance"
ln -s ../lib/appliance/appliance "$tree/usr/bin/appliance"
install -D -m 644 "$from/appliance.service" "$tree/lib/systemd/system/appliance.service"
install -D -m 644 "$from/settings.toml" "$tree/etc/appliance/settings.toml"
install -D -m 644 "$from/appliance.desktop" "$tree/usr/share/applications/appliance.desktop"
# of the name that the program gives its own entry: a user's "appliance autostart on" takes its place
install -D -m 644 "$from/autostart.desktop" "$tree/etc/xdg/autostart/inference-appliance.desktop"
install -D -m 644 "$REPO/assets/icons/appliance.svg" "$tree/usr/share/icons/hicolor/scalable/apps/appliance.svg"
install -D -m 644 "$REPO/assets/icons/appliance.png" "$tree/usr/share/icons/hicolor/256x256/apps/appliance.png"
install -D -m 644 "$from/overrides" "$tree/usr/share/lintian/overrides/$package"
sed -i "s/@PACKAGE@/$package/" "$tree/usr/share/lintian/overrides/$package"

mkdir -p "$tree/usr/share/man/man1" "$tree/usr/share/doc/$package"
sed "s/@VERSION@/$VERSION/" "$from/appliance.1" | gzip -9n >"$tree/usr/share/man/man1/appliance.1.gz"
install -m 644 "$from/copyright" "$tree/usr/share/doc/$package/copyright"
mv "$tree/usr/lib/appliance/_internal/third-party-licenses.txt" "$tree/usr/share/doc/$package/"
rm -f "$tree/usr/lib/appliance/_internal/LICENSE"
gzip -9n "$tree/usr/share/doc/$package/third-party-licenses.txt"
maintainer=$(sed -n 's/^Maintainer: //p' "$from/deb/control")
printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of the project.\n\n -- %s  %s\n' "$package" "$VERSION" "$maintainer" \
  "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$tree/usr/share/doc/$package/changelog.gz"

install -m 755 "$from"/deb/{postinst,prerm,postrm} "$tree/DEBIAN/"
printf '/etc/appliance/settings.toml\n/etc/xdg/autostart/inference-appliance.desktop\n' >"$tree/DEBIAN/conffiles"
(cd "$tree" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
awk -v package="$package" -v version="$VERSION" -v arch="$ARCH" -v size="$(du -sk --apparent-size --exclude=DEBIAN "$tree" | cut -f1)" \
  -v depends="$(python3 "$here/check_elf.py" "$FOLDER" --depends)" -v suggests="$suggests" -v relations="$relations" -v words="$words" '{
    gsub(/@PACKAGE@/, package); gsub(/@VERSION@/, version); gsub(/@ARCH@/, arch); gsub(/@SIZE@/, size)
    gsub(/@DEPENDS@/, depends); gsub(/@SUGGESTS@/, suggests); gsub(/@RELATIONS@/, relations); gsub(/@VARIANT_WORDS@/, words)
    print
  }' "$from/deb/control" >"$tree/DEBIAN/control"

mkdir -p "$OUT"
file=$OUT/${package}_${VERSION}_$ARCH.deb
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$tree" "$file" >/dev/null
echo "$file: $(($(stat -c %s "$file") / 1000000)) MB, installed $(($(sed -n 's/^Installed-Size: //p' "$tree/DEBIAN/control") * 1024 / 1000000)) MB"
