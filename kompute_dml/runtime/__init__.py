"""Vulkan devices, memory, and recorded dispatches. Knows bytes and shaders, no operators."""
