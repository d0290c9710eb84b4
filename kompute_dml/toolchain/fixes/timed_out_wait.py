"""Destroying the fence of running work is invalid, and the work continues."""

from ..edits import after

REPAIRS = "a timed-out eval_await gave up its fence; now it can be called again"

EDITS = [
    after(
        "src/Sequence.cpp",
        "this->mDevice->waitForFences(1, &this->mFence, VK_TRUE, waitFor);\n",
        "    if (result == vk::Result::eTimeout) {\n        return shared_from_this();\n    }\n",
    )
]
