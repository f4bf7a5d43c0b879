"""Flower's programs on the coordinator's machine, sending the token that the gate asks for.

python -m unseen.deploy.flower.with_token PROGRAM ...    takes the arguments of that program of Flower
"""

from __future__ import annotations

import sys

from unseen.deploy.flower.compat import flower_entry_point, send_token


def main() -> None:
    """Run the program that the first word names."""
    sys.argv = sys.argv[1:]
    send_token()
    flower_entry_point(sys.argv[0])()


if __name__ == "__main__":
    main()
