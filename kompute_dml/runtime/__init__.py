"""From Vulkan up to recorded dispatches. Knows bytes and shaders, no operators."""
