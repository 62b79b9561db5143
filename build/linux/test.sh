#!/bin/bash
# Debian 12, as root: builds the package, then installs, uses, upgrades, removes and purges it in a clean Debian root; see
# try_package.sh. Twice on this machine's own architecture: with systemd running (systemd-nspawn), and without.
#
#   build/linux/test.sh                  this machine's architecture
#   build/linux/test.sh --arch arm64     that one, under qemu if need be; then only without systemd
#   build/linux/test.sh --built          with the frozen folder that is there
#   SUITE=trixie build/linux/test.sh     in roots of that Debian; default bookworm
set -euo pipefail
built=''
while [ $# -gt 0 ]; do
  case $1 in
    --arch) export ARCH=${2:?amd64 or arm64}; shift ;;
    --built) built=--package ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
. "$(dirname "$0")/env.sh"
SUITE=${SUITE:-bookworm}
"$here/build.sh" $built
next=$VERSION+next
package=appliance
[ "$VARIANT" = cpu ] || package=appliance-$VARIANT
DEB_COMPRESSION=none "$here/package.sh" "$FOLDER" "$next" "$OUT/next"
first=$OUT/${package}_${VERSION}_$ARCH.deb second=$OUT/next/${package}_${next}_$ARCH.deb

step "lintian"
dpkg -s lintian >/dev/null 2>&1 || apt-get install -y -qq --no-install-recommends lintian >/dev/null
lintian --allow-root --fail-on error --tag-display-limit 0 "$first"

# fresh NAME PACKAGE...: a clean root with these Debian packages, which is removed at the end; its place is in $root
fresh() {
  local made=$LINUX_BASE/$1-$SUITE-$ARCH
  root=$LINUX_BASE/test-$ARCH
  if [ ! -f "$made/.done" ]; then
    step "a root of $SUITE with ${*:2}"
    rm -rf --one-file-system "$made"
    mmdebstrap --quiet --arch="$ARCH" --variant=apt --aptopt='Apt::Install-Recommends "false"' \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
      --include="$(IFS=,; echo "${*:2}")" "$SUITE" "$made" </dev/null
    touch "$made/.done"
  fi
  rm -rf --one-file-system "$root"
  cp -a "$made" "$root"
  mkdir "$root/packages"
  cp "$first" "$second" "$root/packages/"
}
trap 'rm -rf --one-file-system "$LINUX_BASE/test-$ARCH"' EXIT
# what apt would bring; the tests have no network
needed=$(dpkg-deb -f "$first" Depends | sed 's/([^)]*)//g; s/,//g')
arguments=("/packages/$(basename "$first")" "/packages/$(basename "$second")" "$next")

step "without systemd"
fresh plain curl procps $needed
unshare --net -- bash -c 'ip link set lo up && . "$0" && inside "$@"' "$here/env.sh" "$root" \
  bash /src/build/linux/try_package.sh "${arguments[@]}"

if [ -n "$QEMU" ]; then
  step "done; systemd was not tried under qemu-user"
  exit
fi
step "with systemd"
dpkg -s systemd-container >/dev/null 2>&1 || apt-get install -y -qq --no-install-recommends systemd-container >/dev/null
fresh systemd curl procps systemd systemd-sysv dbus $needed
cat >"$root/etc/systemd/system/try.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=-/bin/bash /src/build/linux/try_package.sh ${arguments[*]}
StandardOutput=file:/try.log
StandardError=file:/try.log
ExecStopPost=/bin/systemctl --no-block poweroff
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants" "$root/src"
ln -s ../try.service "$root/etc/systemd/system/multi-user.target.wants/try.service"
touch "$root/try.log"
timeout --kill-after=30 900 systemd-nspawn --quiet --directory="$root" --bind-ro="$REPO:/src" --private-network --register=no \
  --keep-unit --boot </dev/null >"$LINUX_BASE/nspawn.log" 2>&1 || tail -n 20 "$LINUX_BASE/nspawn.log"
cat "$root/try.log"
grep -q '^== passed' "$root/try.log"
step "done"
