"""Operators with an input that is OWNED_BY_DML, which initialization prepares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kompute_dml as dml

from ..compiler import CompiledOperator, OperatorInitializer
from ..device import Device
from ..operators.base import OperatorDesc


def initialized(
    device: Device, desc_class: type[OperatorDesc], owned: str, tensors: Mapping[str, dml.Tensor],
    **attributes: object
) -> Callable[[], object]:
    """Initializes the operator, whose input ``owned`` is OWNED_BY_DML. Returns what dispatches it
    into the output tensor. Tensors are named as the description's fields."""
    descs = {name: t.desc for name, t in tensors.items()}
    descs[owned] = descs[owned].replace(flags=dml.TensorFlags.OWNED_BY_DML)
    compiled = device.compile_operator(
        device.create_operator(desc_class(**descs, **attributes)))
    inputs = [field.snake for field in compiled.definition.spec.inputs]
    size = compiled.binding_properties.persistent_resource_size
    persistent = device.create_buffer(size) if size else None

    def bound(name: str) -> Any:
        t = tensors.get(name)
        if t is None:
            return None
        size = t.desc.total_tensor_size_in_bytes
        return dml.BufferBinding(dml.Buffer(device, t.allocation, size))

    def table(
        dispatchable: CompiledOperator | OperatorInitializer, inputs: Sequence[object],
        outputs: Sequence[dml.BufferBinding | None],
    ) -> dml.BindingTable:
        bindings = device.create_binding_table(dispatchable)
        bindings.bind_inputs(inputs)
        bindings.bind_outputs(outputs)
        if size := dispatchable.binding_properties.temporary_resource_size:
            bindings.bind_temporary_resource(dml.BufferBinding(device.create_buffer(size)))
        return bindings

    initializer = device.create_operator_initializer([compiled])
    only_it = [bound(name) if name == owned else None for name in inputs]
    others = table(compiled, [None if name == owned else bound(name) for name in inputs],
                   [bound("output_tensor")])
    whole = None if persistent is None else dml.BufferBinding(persistent)
    device.record_dispatch(initializer, table(initializer, [only_it], [whole]))
    if whole is not None:
        others.bind_persistent_resource(whole)

    def dispatch() -> Any:
        device.record_dispatch(compiled, others)
        return tensors["output_tensor"]

    return dispatch
