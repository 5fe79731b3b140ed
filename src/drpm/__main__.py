"""``python -m drpm`` is the command ``drpm``."""

from drpm.cli import main

if __name__ == "__main__":
    main()
