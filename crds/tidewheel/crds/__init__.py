"""The objects of the API as pydantic types, and the CRDs generated from them."""
