"""Repairs of kp, one per file: `REPAIRS` names the fault, `EDITS` mend it. Each is small enough to
offer upstream, and works without the others, except those that call `kp::check` of `vk_results`."""
