"""A sequence can be recorded and cleared repeatedly, but not while it runs."""

from ..edits import after, before, replace

REPAIRS = "recording again was invalid, and kept or submitted operations of the last recording"

EDITS = [
    replace(
        "src/Sequence.cpp",
        "commandPoolInfo(vk::CommandPoolCreateFlags(),",
        "commandPoolInfo(vk::CommandPoolCreateFlagBits::eResetCommandBuffer,",
    ),
    # begin() drops the last recording, and now its operations, too.
    before(
        "src/Sequence.cpp",
        '    KP_LOG_INFO("Kompute Sequence command now started recording");\n',
        "    this->mOperations.clear();\n",
    ),
    after(
        "src/Sequence.cpp",
        '    KP_LOG_DEBUG("Kompute Sequence calling clear");\n',
        "    if (this->isRunning()) {\n"
        "        throw std::runtime_error(\n"
        '          "Kompute Sequence clear called when sequence still running");\n'
        "    }\n",
    ),
    # Without operations, an empty command buffer is submitted instead of a stale one.
    before(
        "src/Sequence.cpp",
        "    if (this->isRecording()) {\n        this->end();\n    }\n\n"
        "    if (this->mIsRunning) {",
        "    if (this->mOperations.empty()) {\n        this->begin();\n    }\n",
    ),
]
