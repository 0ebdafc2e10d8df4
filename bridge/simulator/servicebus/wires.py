"""The AMQP engines that a broker may use, by name.

``python`` needs no further package. ``proton`` is Qpid Proton, an independent
implementation that tests compare with. Its package is compiled on installation. Only
the chosen engine is loaded.
"""

from collections.abc import Callable, Mapping

from bridge.simulator.errors import WireChoiceError
from bridge.simulator.servicebus.endpoints import Wire

VARIABLE = "SEBRIDGE_AMQP_WIRE"
DEFAULT = "python"


def chosen(environ: Mapping[str, str]) -> Wire:
    """Return the engine that the environment names, or else the default.

    Raises:
        WireChoiceError: no engine has this name, or the engine is not installed.
    """
    name = environ.get(VARIABLE) or DEFAULT
    find = WIRES.get(name)
    if find is None:
        raise WireChoiceError(
            f"{VARIABLE}: no AMQP engine is called {name!r}; it is one of "
            f"{', '.join(WIRES)}"
        )
    return find()


def _python() -> Wire:
    from bridge.simulator.servicebus.python_wire import (  # noqa: PLC0415 - if chosen
        PythonEngine,
    )

    return PythonEngine


def _proton() -> Wire:
    try:
        from bridge.simulator.servicebus.proton_wire import (  # noqa: PLC0415 - if chosen
            ProtonEngine,
        )
    except ImportError as error:
        raise WireChoiceError(
            f"{VARIABLE}=proton needs the extra [oracle]: "
            "pip install 'scheduled-events-bridge[oracle]'"
        ) from error
    return ProtonEngine


WIRES: Mapping[str, Callable[[], Wire]] = {"python": _python, "proton": _proton}
"""Functions that load and return an engine, by its name."""
