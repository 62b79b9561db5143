"""What the program takes from the system instead of bringing it: libraries that get their security updates there.

All are in Debian 12 and 13 and in Ubuntu 22.04 and 24.04, at these versions or newer.
"""

PACKAGES = {
    "libbz2.so.1.0": "libbz2-1.0",
    "libcrypto.so.3": "libssl3 (>= 3.0.0)",
    "libexpat.so.1": "libexpat1 (>= 2.4)",
    "libffi.so.8": "libffi8 (>= 3.4)",
    "libgcc_s.so.1": "libgcc-s1 (>= 12)",
    "liblzma.so.5": "liblzma5 (>= 5.2.2)",
    "libssl.so.3": "libssl3 (>= 3.0.0)",
    "libstdc++.so.6": "libstdc++6 (>= 12)",
    "libuuid.so.1": "libuuid1 (>= 2.20.1)",
    "libz.so.1": "zlib1g (>= 1:1.2.0)",
}
"""Library → the Debian package that it is in, with the version that Python and ONNX Runtime ask for."""


def depends(needed: set[str]) -> list[str]:
    """The packages of those of the libraries ``needed`` that the system has, in order, each once."""
    return sorted({package for name, package in PACKAGES.items() if name in needed})
