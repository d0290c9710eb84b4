"""Models in the JSON format, put together for the tests."""

from __future__ import annotations

import json
from pathlib import Path

from kompute_dml.dxdispatch.model import parse

MODELS = Path(__file__).parent / "models"


def model_of(resources=None, dispatchables=None, commands=None):
    return parse(json.dumps({
        "resources": resources or {}, "dispatchables": dispatchables or {},
        "commands": commands or [],
    }))


def resource(**fields):
    return model_of({"A": fields}).resources["A"]


def operator(name, desc, **more):
    return model_of(dispatchables={"op": {"type": name, "desc": desc, **more}}) \
        .dispatchables["op"].operator


def tensor(*sizes, data_type="FLOAT32", **more):
    return {"DataType": data_type, "Sizes": list(sizes), **more}


IDENTITY = {"InputTensor": tensor(3), "OutputTensor": tensor(3)}
SUM = {n: tensor(3) for n in ("ATensor", "BTensor", "OutputTensor")}
BUFFERS = {n: {"initialValuesDataType": "FLOAT32", "initialValues": [1, 2, 3]} for n in "AB"}
COPY = {"copy": {"type": "ACTIVATION_IDENTITY", "desc": IDENTITY}}
