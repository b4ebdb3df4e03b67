"""From a changed model to a changed world: queue, observe, plan, execute, report."""
