"""A convolution of one element, channels-last."""

from __future__ import annotations

import kompute_dml as dml
from kompute_dml.runtime.traits import DeviceClass
from passes import Example, small

EXAMPLE = Example(
    lambda x, w: dml.activation_softmax1(dml.convolution(
        x.transpose(0, 3, 1, 2), w,
        out=x.device.empty((2, 5, 7, 16)).transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)),
    small((2, 5, 7, 24), (16, 24, 1, 1)), traits={"device_class": DeviceClass.UNKNOWN})
