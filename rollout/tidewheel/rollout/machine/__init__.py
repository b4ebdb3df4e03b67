"""The step machine: capacity, then weight, then confirmation, then the bake clock; and the way back at any moment."""
