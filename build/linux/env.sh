# Settings that the scripts here share; source me.
#
# LINUX_BASE   work folder, default work/linux in the checkout. In it:
#   tools/              a Python environment of this machine: pip
#   cache/              downloaded wheels, kept between builds
#   base-ARCH/          a small Debian 12 root
#   build-ARCH/         a copy of it with Python 3.11, and the wheels of the lock in opt/wheels-VARIANT
#   dist-ARCH-VARIANT/appliance/   the frozen folder
#   plain-SUITE-ARCH/, systemd-SUITE-ARCH/   clean roots, which tests copy
#   out/                the packages
# ARCH       amd64 or arm64; default that of this machine. The other one runs under qemu-user.
# VARIANT    cpu (onnxruntime) or cuda (onnxruntime-gpu)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export REPO=${here%/build/linux}
export LINUX_BASE=${LINUX_BASE:-$REPO/work/linux}
export ARCH=${ARCH:-$(dpkg --print-architecture)} VARIANT=${VARIANT:-cpu}
case $ARCH in
  amd64) MACHINE=x86_64 QEMU=qemu-x86_64 ;;
  arm64) MACHINE=aarch64 QEMU=qemu-aarch64 ;;
  *) echo "ARCH is amd64 or arm64, not $ARCH" >&2; exit 2 ;;
esac
case $VARIANT in cpu | cuda) ;; *) echo "VARIANT is cpu or cuda, not $VARIANT" >&2; exit 2 ;; esac

[ "$ARCH" != "$(dpkg --print-architecture)" ] || QEMU=''
export QEMU

export CACHE=$LINUX_BASE/cache TOOLS=$LINUX_BASE/tools BASE=$LINUX_BASE/base-$ARCH ROOM=$LINUX_BASE/build-$ARCH
export DIST=$LINUX_BASE/dist-$ARCH-$VARIANT FOLDER=$LINUX_BASE/dist-$ARCH-$VARIANT/appliance OUT=$LINUX_BASE/out
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$REPO/pyproject.toml")
# 1.2.0rc1 comes before 1.2.0
VERSION=$(sed -E 's/\.?(a|b|rc|dev)([0-9]+)/~\1\2/' <<<"$VERSION")
# same inputs, same files: the time in archives and headers is that of the last commit
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$REPO" log -1 --format=%ct 2>/dev/null || echo 1704067200)}
export VERSION SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive

export BEGAN=${BEGAN:-$(date +%s)}
step() { printf '[%4d s] %s\n' $(($(date +%s) - BEGAN)) "$*"; }

# inside ROOT COMMAND...: in that root, with this checkout read-only at /src and the work folder's dist at /dist; what
# was mounted and started goes with the command
inside() {
  local root=$1
  shift
  unshare --mount --pid --fork --kill-child -- bash -euc '
    root=$1 repo=$2 dist=$3
    shift 3
    mount --bind "$root" "$root"
    mkdir -p "$root/src" "$root/dist" "$dist"
    mount --bind -o ro "$repo" "$root/src"
    mount -o remount,bind,ro "$root/src"
    mount --bind "$dist" "$root/dist"
    mount -t proc proc "$root/proc"
    # under qemu it would tell of the wrong processor, and ONNX Runtime, which believes it, crashes
    [ -n "$QEMU" ] || mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" 2>/dev/null || true
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root TERM=dumb \
      DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 QEMU="$QEMU" "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" "$@"
  ' inside "$root" "$REPO" "$DIST" "$@"
}
