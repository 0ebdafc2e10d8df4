"""The AMQP engines that a broker may use, by name.

``python`` needs nothing. ``proton`` is Qpid Proton, an independent implementation that
tests compare with; it is compiled on installation, and loaded only when it is chosen.
"""

from collections.abc import Callable, Mapping

from bridge.simulator.servicebus.endpoints import Wire

VARIABLE = "SEBRIDGE_AMQP_WIRE"
DEFAULT = "proton"


def chosen(environ: Mapping[str, str]) -> Wire:
    """Return the engine that the environment names, or else the default.

    Raises:
        ValueError: there is none of this name.
    """
    name = environ.get(VARIABLE) or DEFAULT
    find = WIRES.get(name)
    if find is None:
        raise ValueError(f"{VARIABLE}: there is no {name!r}; {', '.join(WIRES)} are")
    return find()


def _python() -> Wire:
    from bridge.simulator.servicebus.python_wire import (  # noqa: PLC0415 - the chosen one
        PythonEngine,
    )

    return PythonEngine


def _proton() -> Wire:
    from bridge.simulator.servicebus.proton_wire import (  # noqa: PLC0415 - likewise
        ProtonEngine,
    )

    return ProtonEngine


WIRES: Mapping[str, Callable[[], Wire]] = {"python": _python, "proton": _proton}
"""Each loads what it returns."""
