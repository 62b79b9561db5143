"""A program of a few kilobytes that stands in for the frozen appliance, so that the set-up can be tried quickly."""

import subprocess
from pathlib import Path

GCC = "x86_64-w64-mingw32-gcc"

# Does what the set-up asks of the two programs. What was asked is written to C:\asked.txt; TROUBLE is the exit code
# of --version, and STUCK that of stop.
STAND_IN = r"""
#include <stdio.h>
#include <string.h>
#include <windows.h>
int main(int count, char **words) {
  FILE *asked = fopen("C:\\asked.txt", "a");
  fprintf(asked, "%s", VERSION);
  for (int i = 1; i < count; i++) fprintf(asked, " %s", words[i]);
  fprintf(asked, "\n");
  fclose(asked);
  if (count == 1) { Sleep(2000); return 0; }
  if (!strcmp(words[1], "--version")) return TROUBLE;
  if (!strcmp(words[1], "stop")) { puts(STUCK ? "still running" : "the appliance is not running"); return STUCK; }
  return 0;
}
"""


def stand_in(folder: Path, version: str, *, trouble: int = 0, stuck: int = 0, **files: str) -> Path:
    """A frozen folder. ``files``: text files in ``_internal``, ``_`` in a name stands for a folder."""
    (folder / "_internal").mkdir(parents=True)
    source = folder.parent / "stand_in.c"
    source.write_text(STAND_IN)
    defines = [f'-DVERSION="{version}"', f"-DTROUBLE={trouble}", f"-DSTUCK={stuck}"]
    subprocess.run(
        [GCC, "-O1", "-s", "-Wl,--no-insert-timestamp", *defines, "-o", folder / "appliance-cli.exe", source],
        check=True,
    )
    (folder / "appliance.exe").write_bytes((folder / "appliance-cli.exe").read_bytes())
    for name, text in files.items():
        file = folder / "_internal" / name.replace("_", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder
