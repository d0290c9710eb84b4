"""Repairs of kp, one per file: `REPAIRS` says what, `EDITS` how. Each is small enough to offer
upstream and works without the others, but for those that call `kp::check` of `vk_results`."""
