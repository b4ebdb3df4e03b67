"""How many GPUs a platform needs, from users to power and price; every assumption has a name and may be changed."""
