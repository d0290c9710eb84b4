"""Tensor: elements on a device that behave like a NumPy array."""

from __future__ import annotations

from .methods import Methods
from .operators import Operators
from .protocols import Protocols
from .spellings import Spellings


class Tensor(Operators, Methods, Spellings, Protocols):
    """Elements on a device, made by ``device.tensor(array)``, ``dml.zeros(...)`` and operators.

    Indexing with integers and slices, ``transpose``, ``T`` and ``broadcast_to`` give views of the
    same memory. Operators, methods and NumPy's functions compute on the device and return tensors.
    ``numpy()`` and ``numpy.asarray(tensor)`` wait for pending work and copy to the host.
    """

    __slots__ = ()
