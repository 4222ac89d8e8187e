"""``python -m conductor`` is the command ``conductor``."""

from conductor.cli.main import main

if __name__ == "__main__":
    main(prog_name="conductor")
