"""Tensor: elements on a device that behave as an array of NumPy's does."""

from __future__ import annotations

from .methods import Methods
from .operators import Operators
from .protocols import Protocols


class Tensor(Operators, Methods, Protocols):
    """Elements on a device. Made by ``device.tensor(array)``, ``dml.zeros(...)`` and operators.

    Indexing with integers and slices, ``transpose``, ``T`` and ``broadcast_to`` give views of the
    same memory. Operators, methods and NumPy's functions compute on the device and give tensors.
    ``numpy()`` and ``numpy.asarray(tensor)`` wait for what is pending and copy to the host.
    """

    __slots__ = ()
