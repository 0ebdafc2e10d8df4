"""``sebridge schema``: the JSON Schemas."""

import click

from bridge.configuration import json_schema


@click.command()
@click.argument("what", type=click.Choice(["config", "event", "approval"]))
def schema(what: str) -> None:
    """Print the JSON Schema of one kind of document.

    Example: sebridge schema event
    """
    click.echo(json_schema.text(what), nl=False)
