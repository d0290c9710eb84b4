"""A command buffer must not be freed while the device executes it."""

from ..edits import after

REPAIRS = "destroying a running sequence freed what the device was using, and leaked its fence"

EDITS = [
    after(
        "src/Sequence.cpp",
        'KP_LOG_DEBUG("Kompute Sequence destroy called");\n',
        "\n    if (this->mDevice && this->mIsRunning) {\n"
        "        // Also when the device is lost: then this returns at once.\n"
        "        static_cast<void>(this->mDevice->waitForFences(\n"
        "          1, &this->mFence, VK_TRUE, UINT64_MAX));\n"
        "        this->mDevice->destroy(this->mFence);\n"
        "        this->mFence = nullptr;\n"
        "        this->mIsRunning = false;\n"
        "    }\n",
    )
]
