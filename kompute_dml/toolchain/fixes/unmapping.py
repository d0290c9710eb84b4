"""Coherent memory needs no flush, and a tensor may never have been mapped."""

from ..edits import replace

REPAIRS = "destroying a tensor flushed an empty range and unmapped memory that was not mapped"

EDITS = [
    replace(
        "src/Tensor.cpp",
        "    vk::DeviceSize bufferSize = this->memorySize();\n"
        "    vk::MappedMemoryRange mappedRange(*hostVisibleMemory, 0, bufferSize);\n"
        "    this->mDevice->flushMappedMemoryRanges(1, &mappedRange);\n",
        "",
    ),
    replace(
        "src/Tensor.cpp",
        "    this->mRawData = nullptr;\n    this->mSize = 0;\n",
        "    const bool mapped = this->mRawData != nullptr;\n"
        "    this->mRawData = nullptr;\n    this->mSize = 0;\n",
    ),
    replace(
        "src/Tensor.cpp",
        "    if (this->tensorType() != Tensor::TensorTypes::eStorage) {\n        this->unmap",
        "    if (mapped) {\n        this->unmap",
    ),
    replace(
        "src/include/kompute/Tensor.hpp", "    void* mRawData;\n", "    void* mRawData = nullptr;\n"
    ),
]
