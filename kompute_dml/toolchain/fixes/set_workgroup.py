"""The count is read when a dispatch is recorded, so one algorithm serves any number of groups."""

from ..edits import after

REPAIRS = "an algorithm's group count could not be changed from Python"

EDITS = [
    after(
        "python/src/main.cpp",
        "DOC(kp, Algorithm, getTensors))\n",
        '      .def("set_workgroup",\n'
        "           [](kp::Algorithm& self, const kp::Workgroup& workgroup) {\n"
        "               self.setWorkgroup(workgroup);\n"
        "           },\n"
        '           py::arg("workgroup"))\n',
    )
]
