"""Tells at start what is wrong with the broker. It keeps nothing from starting: jobs wait in the database for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.settings import Settings


def tell_broker_fault(settings: Settings) -> None:
    """One line on standard error where Redis takes no messages; nothing for the embedded broker."""
    import typer

    from service.broker import broker_fault, is_embedded

    fault = None if is_embedded(settings) else broker_fault(settings)
    if fault is not None:
        typer.echo(f"evenkeel: {fault.detail} {fault.advice} Until then, jobs are accepted and wait.", err=True)
