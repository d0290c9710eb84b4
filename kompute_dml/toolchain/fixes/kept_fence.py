"""NVIDIA's driver takes 280 us to create a fence on some systems, and as long to destroy it."""

from ..edits import before, replace

REPAIRS = "each submit created a fence, and each wait destroyed it; a sequence now keeps its own"

_SEQUENCE = "src/Sequence.cpp"

EDITS = [
    replace(
        _SEQUENCE,
        "this->mFence = this->mDevice->createFence(vk::FenceCreateInfo());",
        "if (this->mFence) {\n"
        '        check(this->mDevice->resetFences(1, &this->mFence), "vkResetFences");\n'
        "    } else {\n"
        "        vk::FenceCreateInfo fenceInfo;\n"
        "        check(this->mDevice->createFence(&fenceInfo, nullptr, &this->mFence),\n"
        '              "vkCreateFence");\n'
        "    }",
    ),
    replace(
        _SEQUENCE,
        "    this->mDevice->destroy(\n"
        "      this->mFence, (vk::Optional<const vk::AllocationCallbacks>)nullptr);\n",
        "",
    ),
    before(
        _SEQUENCE,
        '    if (this->mFreeCommandBuffer) {\n        KP_LOG_INFO("Freeing CommandBuffer");',
        "    if (this->mFence) {\n"
        "        this->mDevice->destroy(this->mFence);\n"
        "        this->mFence = nullptr;\n"
        "    }\n\n",
    ),
]
