"""Reads are many times slower from memory that the processor does not cache."""

from ..edits import before

REPAIRS = "host-visible buffers came from the first memory type, often an uncached one"

EDITS = [
    before(
        "src/Tensor.cpp",
        "    uint32_t memoryTypeIndex = -1;\n",
        "    if (memoryPropertyFlags & vk::MemoryPropertyFlagBits::eHostVisible) {\n"
        "        const vk::MemoryPropertyFlags cached =\n"
        "          memoryPropertyFlags | vk::MemoryPropertyFlagBits::eHostCached;\n"
        "        for (uint32_t i = 0; i < memoryProperties.memoryTypeCount; i++) {\n"
        "            if ((memoryRequirements.memoryTypeBits & (1u << i)) &&\n"
        "                (memoryProperties.memoryTypes[i].propertyFlags & cached) ==\n"
        "                  cached) {\n"
        "                memoryPropertyFlags = cached;\n"
        "            }\n"
        "        }\n"
        "    }\n\n",
    )
]
