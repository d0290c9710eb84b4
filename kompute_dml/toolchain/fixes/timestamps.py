"""Queries must be reset before they are written, and each recording writes them again.

The last query of a pool is for the end of the recording. So a pool for one timestamp times the
whole recording, without timestamps between its operations.
"""

from ..edits import after, before, replace

REPAIRS = (
    "timestamp queries were never reset, written past their pool, and awaited when unwritten; "
    "none could be had of a recording as a whole"
)

EDITS = [
    after(
        "src/include/kompute/Sequence.hpp",
        "    std::shared_ptr<vk::QueryPool> timestampQueryPool = nullptr;\n",
        "    uint32_t mTimestampCount = 0;\n",
    ),
    after(
        "src/Sequence.cpp",
        "queryPoolInfo.setQueryCount(totalTimestamps);\n",
        "        this->mTimestampCount = totalTimestamps;\n",
    ),
    before(
        "src/Sequence.cpp",
        "    // latch the first timestamp before any commands are submitted\n",
        "    if (this->timestampQueryPool) {\n"
        "        this->mCommandBuffer->resetQueryPool(\n"
        "          *this->timestampQueryPool, 0, this->mTimestampCount);\n"
        "    }\n\n",
    ),
    replace(
        "src/Sequence.cpp",
        "this->mOperations.push_back(op);\n\n    if (this->timestampQueryPool)",
        "this->mOperations.push_back(op);\n\n    if (this->timestampQueryPool &&\n"
        "        this->mOperations.size() + 1 < this->mTimestampCount)",
    ),
    after(
        "src/Sequence.cpp",
        '        KP_LOG_INFO("Kompute Sequence command recording END");\n',
        "        if (this->timestampQueryPool) {\n"
        "            this->mCommandBuffer->writeTimestamp(\n"
        "              vk::PipelineStageFlagBits::eAllCommands,\n"
        "              *this->timestampQueryPool,\n"
        "              std::min<uint32_t>(this->mOperations.size() + 1,\n"
        "                                 this->mTimestampCount - 1));\n"
        "        }\n",
    ),
    replace(
        "src/Sequence.cpp",
        "const auto n = this->mOperations.size() + 1;",
        "const auto n = std::min<size_t>(this->mOperations.size() + 2,\n"
        "                                    this->mTimestampCount);",
    ),
    # After the wait for the fence, a query that is not available will never be.
    before("src/Sequence.cpp", "this->mDevice->getQueryPoolResults(", "check("),
    replace(
        "src/Sequence.cpp",
        "vk::QueryResultFlagBits::e64 | vk::QueryResultFlagBits::eWait);",
        'vk::QueryResultFlagBits::e64),\n          "vkGetQueryPoolResults");',
    ),
]
