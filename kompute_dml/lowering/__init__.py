"""From a checked description to dispatches: plans, their builder and what lowerings share.

Nothing here knows Vulkan. A lowering sees descriptions, the device's traits and the shaders that
it may run, and gives a :class:`~.plan.Plan`.
"""
