"""Each created object leaves a weak pointer in the manager's lists."""

from ..edits import after

REPAIRS = "the manager's lists of destroyed objects could not be pruned from Python"

EDITS = [
    after(
        "python/src/main.cpp",
        "DOC(kp, Manager, destroy))\n",
        '      .def("clear", &kp::Manager::clear, DOC(kp, Manager, clear))\n',
    )
]
