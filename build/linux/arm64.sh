#!/bin/bash
# The arm64 package without an arm64 machine (Debian 12, as root): a Debian root of arm64 under qemu-user, in which
# PyInstaller runs, then a clean one in which the package is installed, started, asked, upgraded, removed and purged.
# About a quarter of an hour on two cores; options go to test.sh (--built).
exec "$(dirname "$0")/test.sh" --arch arm64 "$@"
