"""The algorithm allocates its constants with malloc, and no command buffer owns them."""

from ..edits import after

REPAIRS = "an algorithm's push and specialization constants were never freed"

EDITS = [
    after(
        "src/Algorithm.cpp",
        'KP_LOG_DEBUG("Kompute Algorithm Destructor started");\n',
        "\n    free(this->mPushConstantsData);\n    free(this->mSpecializationConstantsData);\n",
    )
]
