"""Drivers offer newer features of a device only to an instance of that Vulkan version.

kompute_dml/runtime/adapters.py requests the same version.
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
