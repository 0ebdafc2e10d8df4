"""Azure Functions for Python end at 3.12: beyond it, their tests are left out."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("azure.functions") else ["*functions*"]
