"""`tidewheel demo`: the main job on a real local cluster, from nothing to a rollback."""
