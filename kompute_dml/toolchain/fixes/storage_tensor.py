"""Storage tensors have no host memory, but they can be copied on the device."""

from ..edits import after, replace

REPAIRS = "data() of a storage tensor was a wild pointer, and OpTensorCopy of one was invalid"

EDITS = [
    after(
        "python/src/main.cpp",
        "            // Non-owning container exposing the underlying pointer\n",
        "            if (self.rawData() == nullptr) {\n"
        "                throw std::runtime_error(\n"
        '                  "Kompute Tensor has no memory that the host can see");\n'
        "            }\n",
    ),
    replace(
        "src/Tensor.cpp",
        "return vk::BufferUsageFlagBits::eStorageBuffer;",
        "return vk::BufferUsageFlagBits::eStorageBuffer |\n"
        "                   vk::BufferUsageFlagBits::eTransferSrc |\n"
        "                   vk::BufferUsageFlagBits::eTransferDst;",
    ),
    replace(
        "src/Tensor.cpp",
        "this->mPrimaryMemory &&\n           this->mRawData;",
        "this->mPrimaryMemory &&\n"
        "           (this->mRawData || this->mTensorType == TensorTypes::eStorage);",
    ),
]
