"""From a checked description to dispatches: plans, their builder, and code that lowerings share.

Nothing here knows Vulkan. A lowering reads descriptions, the device's traits and the list of
shaders that the device runs. It returns a :class:`~.plan.Plan`.
"""
