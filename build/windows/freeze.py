"""What `appliance.spec` needs to know: the manifest, the version resource, which collected files are shipped."""

import re
from pathlib import Path, PureWindowsPath

PRODUCT = "Inference Appliance"
MAKER = "Inference Appliance contributors"

MANIFEST = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<assembly xmlns="urn:schemas-microsoft-com:asm.v1" manifestVersion="1.0">
  <trustInfo xmlns="urn:schemas-microsoft-com:asm.v3">
    <security>
      <requestedPrivileges>
        <requestedExecutionLevel level="asInvoker" uiAccess="false"/>
      </requestedPrivileges>
    </security>
  </trustInfo>
  <compatibility xmlns="urn:schemas-microsoft-com:compatibility.v1">
    <application>
      <supportedOS Id="{8e0f7a12-bfb3-4fe8-b9a5-48fd50a15a9a}"/>
    </application>
  </compatibility>
  <application xmlns="urn:schemas-microsoft-com:asm.v3">
    <windowsSettings>
      <longPathAware xmlns="http://schemas.microsoft.com/SMI/2016/WindowsSettings">true</longPathAware>
      <dpiAware xmlns="http://schemas.microsoft.com/SMI/2005/WindowsSettings">true/pm</dpiAware>
      <dpiAwareness xmlns="http://schemas.microsoft.com/SMI/2016/WindowsSettings">PerMonitorV2</dpiAwareness>
    </windowsSettings>
  </application>
  <dependency>
    <dependentAssembly>
      <assemblyIdentity type="win32" name="Microsoft.Windows.Common-Controls" version="6.0.0.0"
        processorArchitecture="*" publicKeyToken="6595b64144ccf1df" language="*"/>
    </dependentAssembly>
  </dependency>
</assembly>
"""
"""Windows 10 and 11 (one id for both), no administrator, long paths, sharp on every screen."""

_UNUSED = (
    "onnxruntime_providers_tensorrt.dll",  # no TensorRT here
    "_avif.cp",  # pictures of a format that no pipeline promises
    "libavif",
)
_OF_WINDOWS = ("ucrtbase.dll", "api-ms-win-", "ext-ms-win-")


def four_numbers(version: str) -> tuple[int, ...]:
    """``1.2.3rc1`` as Windows wants it: (1, 2, 3, 0). What follows the release's numbers is left out."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")[:4]] if release else []
    return tuple(numbers + [0] * (4 - len(numbers)))


def version_resource(file: str, version: str) -> object:
    """What Explorer shows in the properties of a program (a ``VSVersionInfo`` of PyInstaller's)."""
    from PyInstaller.utils.win32 import versioninfo as v

    numbers = four_numbers(version)
    words = {
        "CompanyName": MAKER,
        "FileDescription": PRODUCT,
        "FileVersion": version,
        "InternalName": file.removesuffix(".exe"),
        "LegalCopyright": "Apache License 2.0",
        "OriginalFilename": file,
        "ProductName": PRODUCT,
        "ProductVersion": version,
    }
    table = v.StringTable("040904B0", [v.StringStruct(name, text) for name, text in words.items()])
    fixed = v.FixedFileInfo(filevers=numbers, prodvers=numbers, mask=0x3F, OS=0x40004, fileType=1)
    return v.VSVersionInfo(
        ffi=fixed, kids=[v.StringFileInfo([table]), v.VarFileInfo([v.VarStruct("Translation", [1033, 1200])])]
    )


def is_shipped(name: str, source: str) -> bool:
    """Whether a collected file goes into the folder: nothing of Windows, of Wine, or that nobody uses."""
    low = PureWindowsPath(name).name.lower()  # takes both slashes
    if low.startswith((*_UNUSED, *_OF_WINDOWS)):
        return False
    if low.endswith((".dll", ".pyd", ".exe")) and source:
        return not is_wine(Path(source))
    return not low.endswith((".pyi", ".h", ".lib", ".a", ".pdb"))


def is_wine(file: Path) -> bool:
    """Whether a PE file is one of Wine's own; they say so behind the DOS header."""
    with file.open("rb") as stream:
        start = stream.read(0x80)
    return b"Wine builtin DLL" in start or b"Wine placeholder DLL" in start


def sort_base_library() -> None:
    """Make PyInstaller write base_library.zip in order; it takes the modules as they come out of a set of nodes."""
    from PyInstaller.building import build_main

    write = build_main.create_base_library_zip

    def write_sorted(filename: str, modules: list[tuple[str, str, str]], code: object = None) -> None:
        write(filename, sorted(modules), code)

    build_main.create_base_library_zip = write_sorted
