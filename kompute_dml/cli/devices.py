"""``kompute-dml devices``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..runtime.adapters import Adapter


@click.command(short_help="List the Vulkan devices.")
@click.option("--json", "as_json", is_flag=True, help="Print everything known, as JSON.")
def devices(as_json: bool) -> None:
    """List the Vulkan devices, with the limits and features that matter here."""
    from ..runtime.adapters import list_devices

    adapters = list_devices()
    if as_json:
        click.echo(json.dumps([record(a) for a in adapters], indent=2))
        return
    show(adapters)


def record(adapter: Adapter) -> dict[str, Any]:
    """An adapter, as it is written to JSON."""
    import dataclasses

    fields = dataclasses.asdict(adapter)
    del fields["pipeline_header"]  # bytes for the driver alone
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in fields.items()}


def show(adapters: tuple[Adapter, ...]) -> None:
    for a in adapters:
        groups = " x ".join(f"{n}" for n in a.max_workgroup_count)
        rows = (
            ("type", a.type),
            ("UUID", a.uuid),
            ("driver", f"{a.driver} {a.driver_version}"),
            ("Vulkan", a.vulkan),
            ("memory", f"{_binary(a.device_memory)}, at most {_binary(a.max_allocation)} at once"),
            ("storage buffer", f"{_binary(a.max_storage_buffer_range)} in a binding"),
            ("workgroup", f"{a.max_workgroup_invocations} invocations in subgroups of "
                          f"{_sizes(a)}, {_binary(a.max_shared_memory)} shared"),
            ("workgroups", groups),
            ("push constants", _binary(a.max_push_constants)),
            ("timestamps", f"{a.timestamp_period:g} ns a tick" if a.timestamp_period else "none"),
            ("features", ", ".join(sorted(a.features)) or "none beyond the core"),
            ("matrix shapes", ", ".join(sorted(
                {f"{m.m}x{m.n}x{m.k} {m.a} -> {m.result}" for m in a.cooperative_matrices}
            ))),
        )
        click.echo(f"{a.index}: {a.name}")
        for name, value in rows:
            if value:
                click.echo(f"   {name:15} {value}")


def _sizes(a: Adapter) -> str:
    """The usual size of subgroups, and those that pipelines may ask for."""
    least, most = a.subgroup_sizes
    return f"{a.subgroup_size} ({least} to {most})" if least < most else f"{a.subgroup_size}"


def _binary(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
