"""Drivers offer a device's newer features only to an instance of that version.

It is the one that kompute_dml/runtime/adapters.py asks for.
"""

from ..edits import after, replace

REPAIRS = "the instance was created for Vulkan 1.1, whatever the loader offers"

EDITS = [
    after("src/Manager.cpp", "#include <iterator>\n", "#include <algorithm>\n"),
    replace(
        "src/Manager.cpp",
        "applicationInfo.apiVersion = KOMPUTE_VK_API_VERSION;",
        "applicationInfo.apiVersion = std::min<uint32_t>(\n"
        "      VK_MAKE_VERSION(1, 3, 0), vk::enumerateInstanceVersion());",
    ),
]
