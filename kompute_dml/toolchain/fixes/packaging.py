"""Changes of setup.py for today's interpreters."""

from ..edits import replace

REPAIRS = "a missing comma hid PYTHON_EXECUTABLE from CMake; distutils is gone; NumPy 2 works"

EDITS = [
    replace(
        "setup.py",
        "'-DKOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK=ON'\n",
        "'-DKOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK=ON',\n",
    ),
    replace("setup.py", "from distutils.version import LooseVersion\n", ""),
    replace(
        "setup.py",
        "LooseVersion(re.search(r'version\\s*([\\d.]+)', out.decode()).group(1))",
        "tuple(map(int, re.search(rb'version\\s*(\\d+)\\.(\\d+)', out).groups()))",
    ),
    replace("setup.py", "cmake_version < '3.15'", "cmake_version < (3, 15)"),
    replace("setup.py", "numpy<2.0.0", "numpy"),
]
