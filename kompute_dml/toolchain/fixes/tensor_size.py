"""Sizes have 32 bits. A larger array became a small buffer, and the copy overran it."""

from ..edits import after

REPAIRS = "tensors of 4 GiB and more were accepted and wrapped around"

EDITS = [
    after(
        "python/src/main.cpp",
        "const py::buffer_info info = flatdata.request();\n",
        "            if (static_cast<uint64_t>(flatdata.nbytes()) > UINT32_MAX) {\n"
        '                throw std::runtime_error("Kompute Tensor of " +\n'
        "                                         std::to_string(flatdata.nbytes()) +\n"
        '                                         " bytes is larger than 4 GiB - 1");\n'
        "            }\n",
        times=2,
    )
]
