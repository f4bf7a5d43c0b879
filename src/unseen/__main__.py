"""`python -m unseen` is the `unseen` command."""

from unseen.cli import main

if __name__ == "__main__":
    main()
