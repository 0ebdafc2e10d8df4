"""The process: arguments, signals and exit codes."""

from bridge.cli import main

if __name__ == "__main__":
    main()
