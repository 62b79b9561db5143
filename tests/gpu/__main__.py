"""``python -m tests.gpu [--device cuda:0|cpu] [--only serving,death] [--out FOLDER] [--limit-s 480]``

Prints a line for each check as it comes, and the table at the end. Exit code 0; 1: a check failed; 2: nothing could
be checked, and why. Missed goals of speed are told and are no failure.
"""

import sys

from tests.gpu import needs


def main() -> int:
    """What is missing is told before anything is imported that may be."""
    print(f"dependencies that are not installed: {', '.join(needs.missing()) or 'none'}", flush=True)
    if fault := needs.fault():
        print(f"nothing is checked: the appliance does not start: {fault}")
        return 2
    from tests.gpu import run

    return run.main(__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
